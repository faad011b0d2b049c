"""Send the roles of a real service what no client of ours sends, and see that they only ever refuse it.

    python -m tests.fuzz.rpc --seconds 60
    python -m tests.fuzz.rpc --case ConstructorService/Join/state --seed 4711 --count 1      one case again

Every RPC of every role, with rubbish, odd values, other RPCs' requests, huge ones, none, many at once,
connections that stop in the middle, and callers that show no token. Each answer must be a status that says
whose fault it was; no role may end, hang, or hold what its callers have left. Prints a table, and for each
finding the command that shows it again. Exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
import psutil

from dataloader_client import DataServiceLoader, Mesh
from dataloader_client._pb import plan_pb2
from dataloader_svc.engine.access import role_credentials
from dataloader_svc.engine.role import SERVICES as ROLES
from dataloader_svc.engine.spec import JobSpec
from dataloader_svc.rpc.servicers import SERVICES
from dataloader_svc.sample import keyed_rng
from dataloader_svc.store.open import open_store
from real_job import Served, job_values, serve, write_config, write_data
from tests.fuzz import calls
from tests.fuzz.calls import CASES, Case, Endpoint, Requests

TOKEN = "the-token-of-this-service"
MAX_REQUEST = 64 * 2**10
HELD = 16
"""Connections that have stopped in the middle, at a time."""

PROPER = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""What a caller with a token may hear. UNKNOWN and INTERNAL are mistakes of ours."""

MOST_FINDINGS = 20

SPREAD_BYTES, SPREAD_FILES = 128 * 2**20, 64
"""That a role may grow by after a first round, ever: blocks and epochs that it keeps, pools that fill."""


def name_of(case: Case) -> str:
    return f"{case.method.service}/{case.method.name}/{case.kind}"


@dataclass(slots=True)
class Tally:
    """Codes by RPC; findings with the command that shows them again."""

    codes: dict[str, Counter[str]] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)

    def add(self, case: Case, seed: int, code: grpc.StatusCode, text: str) -> None:
        rpc = f"{case.method.service}/{case.method.name}"
        self.codes.setdefault(rpc, Counter())[code.name] += 1
        expected = {grpc.StatusCode.UNAUTHENTICATED} if case.kind == "stranger" else PROPER
        if case.kind == "silent":
            expected = {grpc.StatusCode.CANCELLED}
        if code not in expected:
            self.find(case, seed, f"{code.name}: {text}")

    def find(self, case: Case, seed: int, what: str) -> None:
        again = f"python -m tests.fuzz.rpc --case {name_of(case)} --seed {seed} --count 1"
        self.found.append(f"{name_of(case)}: {what}\n    {again}")

    def table(self) -> str:
        names = sorted({name for counts in self.codes.values() for name in counts})
        lines = [f"{'RPC':28}" + "".join(f"{name[:19]:>21}" for name in names)]
        for rpc, counts in sorted(self.codes.items()):
            lines.append(f"{rpc:28}" + "".join(f"{counts[name]:21}" for name in names))
        return "\n".join(lines)


class Fuzzed:
    """A service under fire. `with Fuzzed(folder) as fuzzed: fuzzed.round(...)`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._held: list[socket.socket] = []
        self._before: dict[str, tuple[int, int]] = {}  # role -> bytes and files, after a first round
        self.tally = Tally()

    def __enter__(self) -> Self:
        with self._stack as stack:
            values = job_values(
                write_data(self._folder),
                planner={"ahead": 2},
                security={"token": "${TOKEN}", "max_request": MAX_REQUEST},
            )
            config = write_config(self._folder / "job.yaml", values)
            self._served = stack.enter_context(serve(config, TOKEN=TOKEN))
            stack.callback(self._let_go)
            self._endpoints = _endpoints(self._served)
            self._channels = {
                endpoint.address: stack.enter_context(grpc.insecure_channel(endpoint.address))
                for endpoint in self._endpoints
            }
            self._expected = self._read()
            self._roles = self._served.roles()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def round(self, cases: Sequence[Case], seed: int) -> None:
        """One of each, in an order of the seed's own; then see that all is well."""
        with DataServiceLoader(self._served.address, token=TOKEN, mesh=Mesh()) as loader:
            for number in keyed_rng(seed, "order").permutation(len(cases)):
                self._send(cases[number], seed, loader.info)
        self.check(cases, seed)

    def _send(self, case: Case, seed: int, join: plan_pb2.JoinResponse) -> None:
        rng = keyed_rng(seed, "rpc", name_of(case))
        there = [each for each in self._endpoints if each.service == case.method.service]
        if not there:
            return  # a service that no role of this job has
        endpoint = there[int(rng.integers(len(there)))]
        if case.kind == "cut":
            self._held.append(calls.cut(endpoint.address, rng))
            while len(self._held) > HELD:
                self._held.pop(0).close()
            return
        channel = self._channels[endpoint.address]
        metadata = endpoint.metadata
        if case.kind == "silent":
            self.tally.add(case, seed, *calls.open_silent(channel, case, metadata))
            return
        if case.kind == "stranger":
            metadata = calls.strange(rng, metadata)
        messages = calls.bodies(case, Requests(join, rng), rng, MAX_REQUEST)
        if case.kind == "session":
            self.tally.add(case, seed, *calls.send_session(channel, messages, metadata))
            return
        for _ in range(10 if case.kind == "replay" else 1):
            self.tally.add(case, seed, *calls.send(channel, case, messages, metadata))

    def check(self, cases: Sequence[Case], seed: int) -> None:
        """No role has ended, hangs, or holds what was left; a trainer gets what it got before."""
        self._let_go()
        last = cases[-1]
        for name, process in self._roles.items():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                self.tally.find(last, seed, f"{name} has ended:\n{self._served.logs()[-3000:]}")
                return
            now = process.memory_info().rss, process.num_fds()
            memory, files = self._before.setdefault(name, now)
            if now[0] > memory + SPREAD_BYTES:
                self.tally.find(last, seed, f"{name} has grown from {memory >> 20} to {now[0] >> 20} MiB")
            if now[1] > files + SPREAD_FILES:
                self.tally.find(last, seed, f"{name} holds {now[1]} files, {files} before")
        if (found := self._read()) != self._expected:
            self.tally.find(last, seed, f"a trainer reads {found}, not {self._expected}")

    def _read(self) -> list[str]:
        """Of each step from the first, what is in it."""
        with DataServiceLoader(self._served.address, token=TOKEN, mesh=Mesh(), timeout_s=60) as loader:
            return [batch.digest for step in range(3) for batch in loader.read(step)]

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().close()


def _endpoints(served: Served) -> list[Endpoint]:
    spec = JobSpec.read(served.run_dir / "job.json")
    with closing(open_store(spec.store, spec.base_dir)) as store:
        found = store.items("endpoint/")
    endpoints = []
    for key, value in sorted(found.items()):
        role, address = key.split("/")[1], str(json.loads(value)["address"])
        shown = role_credentials(spec).metadata("")
        if role == "constructor":
            shown = (("authorization", f"Bearer {TOKEN}"),)
        with grpc.insecure_channel(address) as channel:
            services = [name for name in SERVICES if calls.is_served(channel, name, shown)]
        assert ROLES[role] in services, key
        endpoints += [Endpoint(address, service, shown) for service in services]
    return endpoints


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after about so long")
    parser.add_argument("--case", action="append", help="Service/RPC/kind; default: all")
    parser.add_argument("--kind", action="append", help="of all RPCs; default: all")
    parser.add_argument("--seed", type=int, default=0, help="first one")
    parser.add_argument("--count", type=int, help="this many seeds, instead of a time")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.case is None or name_of(case) in arguments.case]
    cases = [case for case in cases if arguments.kind is None or case.kind in arguments.kind]
    if not cases:
        parser.error(f"no such case; cases are: {', '.join(map(name_of, CASES))}")
    ends = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-rpc-") as folder, Fuzzed(Path(folder)) as fuzzed:
        for seed in itertools.islice(itertools.count(arguments.seed), arguments.count):
            fuzzed.round(cases, seed)
            over = arguments.count is None and time.monotonic() > ends
            if over or len(fuzzed.tally.found) > MOST_FINDINGS:
                break
    print(fuzzed.tally.table())
    for found in fuzzed.tally.found:
        print(f"\n{found}")
    return 1 if fuzzed.tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
