"""docs/states.md and docs/wire.md name all there is: events, RPCs, errors, versions, and the figures."""

from __future__ import annotations

import re
from pathlib import Path
from types import UnionType
from typing import get_args

import grpc
import pytest

import dataloader_svc
from dataloader_client import failures, methods, transport
from dataloader_client.checkpoint import VERSION as STATE_DICT_VERSION
from dataloader_svc import errors
from dataloader_svc.constructor import core as window
from dataloader_svc.constructor import peers
from dataloader_svc.constructor.service import CALL_TIMEOUT_S
from dataloader_svc.planner import core, loaders
from dataloader_svc.planner.plan import VERSION as RECORD_VERSION
from dataloader_svc.planner.state_json import VERSION as STATE_VERSION
from dataloader_svc.rpc.answers import SERVICES
from dataloader_svc.rpc.status import code_of

DOCS = Path(dataloader_svc.__file__).parent.parent / "docs"
STATES, WIRE = ((DOCS / name).read_text() for name in ("states.md", "wire.md"))


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its head."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("union", [core.Event, window.Event])
def test_every_event_is_named(union: UnionType) -> None:
    assert [cls.__name__ for cls in get_args(union) if f"`{cls.__name__}`" not in STATES] == []


def test_the_planner_s_events_are_those_of_the_table() -> None:
    listed = {row[0].strip("`") for row in rows(STATES, "The planner's core")}
    assert {cls.__name__ for cls in get_args(core.Event)} <= listed


def test_every_call_stands_in_the_table_with_its_deadline() -> None:
    table = {row[0].replace("`", ""): row[2] for row in rows(WIRE, "Calls")}
    assert sorted(table) == sorted(
        f"{service.removesuffix('Service')} {method.name}"
        for service, calls in SERVICES.items()
        for method in calls
    )
    seconds = {
        "Constructor Leave": transport._LEAVE_TIMEOUT_S,
        "Constructor Read": transport._FIRST_PATIENCE_S,
        "Planner Join": CALL_TIMEOUT_S,
        "Planner Status": CALL_TIMEOUT_S,
        "Loader Describe": loaders._DESCRIBE_TIMEOUT_S,
        "Loader Probe": loaders._PROBE_TIMEOUT_S,
        "Loader Release": loaders._RELEASE_TIMEOUT_S,
        "Loader Fetch": peers.FETCH_TIMEOUT_S,
    }
    for call, timeout in seconds.items():
        found = re.match(r"(\d+) s", table[call])
        assert found is not None, call
        assert float(found[1]) == timeout, call


def test_errors_have_the_status_and_the_counterpart_that_the_page_says() -> None:
    table = [row for row in rows(WIRE, "Errors") if not row[0].startswith("none")]
    named = {name: row for row in table for name in row[0].partition(":")[0].split(", ")}
    assert {"RoleFailed", "PeerError", "StateError"} <= named.keys()
    for name, (_, status, client) in named.items():
        error = getattr(errors, name)
        assert code_of(error("")) is grpc.StatusCode[status]
        if name in failures.RETRYABLE_NAMES:
            assert client == "tries again"
        else:
            counterpart = failures.BY_NAME.get(name, failures.DataStoppedError)
            assert client.partition(",")[0] == counterpart.__name__
    assert named.keys() >= failures.RETRYABLE_NAMES
    assert named.keys() >= failures.BY_NAME.keys()


def test_versions() -> None:
    found = [int(re.search(r"(?:= |: )(\d+)`?", row[1])[1]) for row in rows(WIRE, "Versions")]
    assert found == [methods.PROTOCOL, RECORD_VERSION, STATE_VERSION, STATE_DICT_VERSION]
