"""Where the CPU of a step goes: by role, by thread, and by part of the code.

    python tests/bench/step_cpu.py [--ranks 4] [--steps 200] [--config CONFIG] [--json]

A service, and a trainer's process a rank that takes batches as fast as they come and looks at nothing. CPU
milliseconds a step are what the kernel counted for the threads of each process (schedstat, nanoseconds; user
and system) while the ranks took their steps. A busy machine makes them more, up to twice, since processes
share its caches and cores; so compare within one run, or runs in turn. What does not depend on it: how often
threads go to sleep a step (voluntary context switches), each of which somebody ends by waking them. Of the
threads gRPC's own are told apart, which work where no Python is.

Parts are the innermost line of ours on the stack, by file, as py-spy saw it 250 times a second (pip install
py-spy; without it, no parts are shown): their shares of the CPU of Python's threads. What has no line of ours
is gRPC (its thread, and what runs in the event loop from C), or the event loop and wake-ups between it and
threads. Watching costs CPU, so steps are counted first, and as many watched after them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dataloader_client import DataServiceLoader
from dataloader_svc.config.load import load_config
from dataloader_svc.engine.job import Job
from dataloader_svc.engine.spec import job_spec

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests" / "bench" / "mixture_text.yaml"
WARM_STEPS = 30
SAMPLES_PER_S = 250
OURS = re.compile(
    r"\((?:\S*/)?(?:dataloader_svc|clients|dataloader_client|balancers|dataloader_balancers)/(\S+?):\d+\)"
)
LOOP = ("engine/child.py", "engine/role.py")
WAKING = re.compile(
    r"select \(selectors|_worker \(concurrent|_(write_to|read_from)_self|submit \(concurrent|_run_once"
)
PYTHON, GRPC, SLEEPS = "Python", "gRPC", "sleeps"
ASLEEP = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
GRPC_THREADS = ("event_engine", "grpc", "resolver", "timer")


# ---- a rank


def rank(address: str, number: int, ranks: int, steps: int) -> None:
    """Run in; at each line take the steps, and print their tokens: to be counted, and to be watched."""
    with DataServiceLoader(address, dp_rank=number, dp_size=ranks) as loader:
        batches = iter(loader)
        for count in (WARM_STEPS, steps, steps):
            tokens = 0
            while count:
                batch = next(batches)
                tokens += batch.num_tokens
                count -= batch.is_last_microbatch
            print(json.dumps(tokens), flush=True)
            sys.stdin.readline()


@contextlib.contextmanager
def started(address: str, ranks: int, steps: int) -> Iterator[list[subprocess.Popen[str]]]:
    """A process a rank, run in."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(ranks):
            arguments = ["--rank", address, *map(str, (number, ranks, steps))]
            process = subprocess.Popen(
                [sys.executable, __file__, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            found.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in found:
            say(process)
        yield found


def say(process: subprocess.Popen[str]) -> int:
    """The next line of a rank."""
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline()))


def take(ranks: list[subprocess.Popen[str]]) -> int:
    """Have all ranks take their steps: the tokens that they got."""
    for process in ranks:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(map(say, ranks))


# ---- what processes used


def counted(pid: int) -> Counter[str]:
    """CPU seconds of the live threads of a process, by kind, and how often they went to sleep."""
    used: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            name, seconds = (
                (task / "comm").read_text(),
                int((task / "schedstat").read_text().split()[0]) / 1e9,
            )
            used[SLEEPS] += int(ASLEEP.findall((task / "status").read_text())[0])
            used[GRPC if name.startswith(GRPC_THREADS) else PYTHON] += seconds
    return used


@dataclass(slots=True)
class Used:
    """By a role's processes while steps were taken: as `counted`, and samples by part."""

    threads: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)

    def parts(self) -> dict[str, float]:
        """CPU seconds of Python's threads by part, most first."""
        seen = max(sum(self.samples.values()), 1)
        return {name: self.threads[PYTHON] * count / seen for name, count in self.samples.most_common()}


def part_of(stack: str) -> str:
    """Of a stack as py-spy writes it, outermost frame first."""
    ours = [name for name in OURS.findall(stack) if name not in LOOP]
    if ours:
        return ours[-1].removesuffix(".py")
    return "(event loop, wake-ups)" if WAKING.search(stack.rpartition(";")[2]) else "(gRPC)"


class Watch:
    """py-spy on a process from the beginning to `end`."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._file = folder / f"{pid}.raw"
        command = ["py-spy", "record", "--pid", str(pid), "--rate", str(SAMPLES_PER_S), "--nonblocking"]
        command += ["--format", "raw", "--output", str(self._file)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self) -> Counter[str]:
        """Samples by part."""
        self._process.send_signal(2)  # as Ctrl-C: it writes what it has
        self._process.wait()
        samples: Counter[str] = Counter()
        for line in self._file.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            samples[part_of(stack)] += int(count)
        return samples


# ---- the measurement


def measure(args: argparse.Namespace) -> tuple[dict[str, Used], int]:
    """What each role used, ranks together as "trainer", and tokens that all ranks got."""
    loaded = load_config(args.config)
    with tempfile.TemporaryDirectory(prefix="step-cpu-") as scratch:
        folder = Path(scratch)
        spec = job_spec(loaded, folder, "127.0.0.1:0", f"sqlite:///{folder}/state.db")
        with Job(spec) as job, started(job.address, args.ranks, args.steps) as ranks:
            roles = {name: status.pid for name, status in job.roles().items() if status.pid is not None}
            pids = [(name.rpartition("-")[0], pid) for name, pid in roles.items()]
            pids += [("trainer", process.pid) for process in ranks]
            used: dict[str, Used] = {role: Used() for role, _ in pids}
            before = [counted(pid) for _, pid in pids]
            tokens = take(ranks)
            for (role, pid), earlier in zip(pids, before, strict=True):
                used[role].threads += counted(pid) - earlier
            watches = [(role, Watch(pid, folder)) for role, pid in pids] if shutil.which("py-spy") else []
            take(ranks)
            for role, watch in watches:
                used[role].samples += watch.end()
            return used, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        address, *numbers = args.rank
        rank(address, *map(int, numbers))
        return
    used, tokens = measure(args)
    ms = 1e3 / args.steps
    rows = {
        role: {
            "ms": (each.threads[PYTHON] + each.threads[GRPC]) * ms,
            "threads": {kind: each.threads[kind] * ms for kind in (PYTHON, GRPC)},
            "sleeps": each.threads[SLEEPS] / args.steps,
            "parts": {part: seconds * ms for part, seconds in each.parts().items()},
        }
        for role, each in used.items()
    }
    total = sum(row["ms"] for row in rows.values())
    summary = {
        "tokens_per_step": tokens / args.steps,
        "ms": total,
        "tokens_per_cpu_s": tokens / args.steps / total * 1e3,
    }
    if args.json:
        print(json.dumps({**summary, "roles": rows}))
        return
    print(f"{args.ranks} ranks, {tokens / args.steps:,.0f} tokens a step: {total:.1f} ms of CPU a step")
    print(f"{summary['tokens_per_cpu_s'] / 1e6:.2f} M tokens a CPU second")
    for role, row in rows.items():
        grpc, sleeps = row["threads"][GRPC], row["sleeps"]
        print(f"{role:12} {row['ms']:6.2f} ms   of gRPC's own threads {grpc:.2f}   asleep {sleeps:.1f} times")
        for part, value in row["parts"].items():
            if value >= 0.01 * total:
                print(f"    {value:6.2f}  {part}")


if __name__ == "__main__":
    main()
