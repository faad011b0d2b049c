"""Damage valid input of every kind by the thousands, and see that readers only ever refuse it.

    python -m tests.fuzz.fuzz --seconds 60
    python -m tests.fuzz.fuzz --target parquet --seed 4711 --count 1      one case again

Cases run in child processes: one that dies is named with its signal, one that says nothing for a minute is
killed. Prints a table, and for each finding the command that shows it again. Exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.targets import EXPENDABLE, TARGETS

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""For one case: they take milliseconds."""
IDLE_S = 120.0
"""For a child between cases: it starts, or ends."""

_PER_CHILD = 200
_SHOWN = 3  # findings of one target with other seeds


@dataclass(frozen=True, slots=True)
class Found:
    """Something that should not happen, and the seed that makes it happen."""

    target: str
    seed: int
    what: str

    def __str__(self) -> str:
        again = f"python -m tests.fuzz.fuzz --target {self.target} --seed {self.seed} --count 1"
        return f"{self.target}: {self.what}\n    {again}"


@dataclass(slots=True)
class Tally:
    """Outcomes by target, and findings."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)

    def add(self, target: str, outcome: str) -> None:
        self.outcomes.setdefault(target, Counter())[outcome] += 1

    def fault(self, target: str, seed: int, what: str) -> None:
        """Something that should not happen, unless the process is there to die."""
        killed = target in EXPENDABLE and what.startswith(("died", "hung"))
        self.add(target, "killed" if killed else "found")
        if not killed:
            self.found.append(Found(target, seed, what))

    def table(self) -> str:
        """A line a target."""
        columns = ("cases", "read", "partly", "refused", "killed", "found")
        lines = [f"{'target':18}" + "".join(f"{name:>9}" for name in columns)]
        for target, counts in sorted(self.outcomes.items()):
            numbers = [counts.total(), *(counts[name] for name in columns[1:])]
            lines.append(f"{target:18}" + "".join(f"{number:9}" for number in numbers))
        return "\n".join(lines)


def run(specs: Sequence[tuple[str, int, int]], tally: Tally, patience_s: float = PATIENCE_S) -> None:
    """Run cases (target, first seed, count) in children, a new one after each that dies or hangs."""
    left = list(specs)
    while left:
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
            command = [sys.executable, "-m", "tests.fuzz.child", *(f"{t}:{s}:{n}" for t, s, n in left)]
            place = os.environ | {"TMPDIR": scratch}  # ours to remove: a child may die
            with subprocess.Popen(
                command, cwd=ROOT, env=place, stdout=subprocess.PIPE, stderr=errors
            ) as child:
                last, hung = _watch(child, tally, patience_s)
            if last is None:
                if child.returncode == 0:
                    return
                errors.seek(0)
                raise RuntimeError(
                    f"a child ended with {child.returncode} outside of any case: {errors.read()!r}"
                )
            target, seed = last
            what = f"hung for {patience_s:.0f} s" if hung else f"died: {_words(child.returncode)}"
            tally.fault(target, seed, what)
        left = list(_behind(left, target, seed))


def _watch(
    child: subprocess.Popen[bytes], tally: Tally, patience_s: float
) -> tuple[tuple[str, int] | None, bool]:
    """Count outcomes to the end; (case that was not finished, whether it hung)."""
    assert child.stdout is not None
    running: tuple[str, int] | None = None

    def patience() -> float:
        return max(patience_s, IDLE_S) if running is None else patience_s

    for line in _lines(child.stdout.fileno(), patience):
        if line is None:
            child.kill()
            child.wait()
            return running, True
        word, _, rest = line.partition(" ")
        if word == "begin":
            target, _, seed = rest.rpartition(" ")
            running = (target, int(seed))
            continue
        assert running is not None
        if word == "end":
            tally.add(running[0], rest)
        else:
            tally.fault(*running, rest)
        running = None
    child.wait()
    return running, False


def _lines(descriptor: int, patience_s: Callable[[], float]) -> Iterator[str | None]:
    """Lines as they come; None where nothing comes for so long."""
    rest = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], patience_s())
        if not ready:
            yield None
            return
        data = os.read(descriptor, 2**16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)


def _behind(specs: Sequence[tuple[str, int, int]], target: str, seed: int) -> Iterator[tuple[str, int, int]]:
    """What is left of `specs` behind one case."""
    at = next(
        i for i, (name, first, count) in enumerate(specs) if name == target and first <= seed < first + count
    )
    _, first, count = specs[at]
    if seed + 1 < first + count:
        yield target, seed + 1, first + count - seed - 1
    yield from specs[at + 1 :]


def _words(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def run_for(seconds: float, targets: Sequence[str], first_seed: int, jobs: int, tally: Tally) -> None:
    """All targets in turn, with ever new seeds, until the time is over."""
    ends = time.monotonic() + seconds
    work = (
        (target, first_seed + turn * _PER_CHILD, _PER_CHILD)
        for turn in itertools.count()
        for target in targets
    )

    def go_on(take: Callable[[], tuple[str, int, int]]) -> None:
        while time.monotonic() < ends:
            run([take()], tally)

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(go_on, work.__next__) for _ in range(jobs)]:
            done.result()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after about so long")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="first one")
    parser.add_argument("--count", type=int, help="this many cases of each target, instead of a time")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    targets, tally = arguments.target or list(TARGETS), Tally()
    if arguments.count is not None:
        run([(target, arguments.seed, arguments.count) for target in targets], tally)
    else:
        run_for(arguments.seconds, targets, arguments.seed, arguments.jobs, tally)
    print(tally.table())
    for target, group in itertools.groupby(
        sorted(tally.found, key=lambda each: each.target), lambda e: e.target
    ):
        found = list(group)
        print(f"\n{target}: {len(found)} findings")
        for each in found[:_SHOWN]:
            print(f"  {each}")
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
