"""A round or two of what `make fuzz` does for long: every RPC of every role, wrong in every way."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest

from dataloader_client._pb import plan_pb2
from dataloader_svc.engine.role import SERVICES as ROLES
from dataloader_svc.rpc.servicers import SERVICES
from dataloader_svc.sample import keyed_rng
from tests.fuzz.calls import CASES, Case, Requests, bodies, strange
from tests.fuzz.rpc import PROPER, Fuzzed, Tally, name_of

JOINED = plan_pb2.JoinResponse(
    session=1, job="tiny", sources=["notes"], state_json='{"version":1,"sources":{"notes":{"epoch":0}}}'
)


def test_nothing_but_refusals(tmp_path: Path) -> None:
    with Fuzzed(tmp_path) as fuzzed:
        fuzzed.round(CASES, seed=0)
        fuzzed.round([case for case in CASES if case.kind in ("odd", "state", "session", "cut")], seed=1)
    tally = fuzzed.tally
    assert not tally.found, "\n".join(tally.found)
    assert {rpc.partition("/")[0] for rpc in tally.codes} >= set(ROLES.values())
    for rpc, counts in tally.codes.items():
        assert counts["UNAUTHENTICATED"] == 1, f"{rpc}: a stranger was let in, or none came"
        answers = counts["OK"] + counts["INVALID_ARGUMENT"] + counts["FAILED_PRECONDITION"]
        assert answers >= 10, f"{rpc}: {counts}"


def test_every_rpc_is_fuzzed_in_every_way() -> None:
    rpcs = {method.path for known in SERVICES.values() for method in known}
    kinds = {case.kind for case in CASES}
    for rpc in rpcs:
        assert kinds - {"state", "session"} <= {case.kind for case in CASES if case.method.path == rpc}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_cases_follow_the_seed_alone(case: Case) -> None:
    def made() -> list[bytes]:
        rng = keyed_rng(3, name_of(case))
        return bodies(case, Requests(JOINED, rng), rng, 1000)

    assert made() == made()


def test_no_stranger_shows_the_right_token() -> None:
    right = (("authorization", "Bearer abcd"),)
    shown = {strange(np.random.default_rng(seed), right) for seed in range(200)}
    assert len(shown) > 5
    assert not [pairs for pairs in shown if right[0] in pairs]


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_a_mistake_of_ours_is_a_finding(code: grpc.StatusCode) -> None:
    case = next(case for case in CASES if case.kind == "noise")
    tally = Tally()
    tally.add(case, 7, code, "text")
    assert bool(tally.found) == (code not in PROPER)
    assert all(f"--case {name_of(case)} --seed 7" in found for found in tally.found)
    for mistaken in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE):
        assert mistaken not in PROPER
