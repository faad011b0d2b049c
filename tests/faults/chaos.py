"""A job that has a bad day, by a seed: roles killed, stopped and restarted, trainers on ever other meshes.

`make soak` runs it for as long as is wanted; `test_chaos.py` for a short
while. What ranks receive is put together by `observe.audit`, which shares no code with what it judges, and
compared with a job that nobody disturbed. Two histories are looked at:

- what the trainer kept: each step once, as its checkpoints say. Every position is in it once, or quarantined;
- what was delivered at all: a step that comes again, after a trainer's crash, is what it was, to the byte.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dataloader_client import Batch, Coords, Mesh
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.errors import Reason
from dataloader_svc.observe.audit import (
    RankBatch,
    Span,
    StepDelivery,
    check_caps,
    check_mixture,
    check_once,
    reassemble,
)
from dataloader_svc.planner.history import current_generation, lineage, read_changes, read_records
from dataloader_svc.sample import keyed_rng
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.storage import Storage
from dataloader_svc.store import open_store
from faults.chaos_events import change_mixture, changes_in, full_disk, has_ended, set_clock, tell
from reading import Reader
from real_job import Served, job_values, serve, write_config, write_data
from redis_server import RedisServer, free_port, redis_server

MESHES = (Mesh(), Mesh(dp=2), Mesh(dp=4), Mesh(cp=2), Mesh(dp=2, cp=2), Mesh(dp=2, tp=2))
OUTAGE_S = (0.05, 1.0)
FORGETS = 0.3
ROLES = ("planner-0", "loader-0", "loader-1", "constructor-0")

Contents = dict[Span, str]
"""What each piece of a step holds, as a hash."""


@dataclass
class Report:
    """What happened. `findings`: broken contracts; none is what one hopes for."""

    seed: int
    events: Counter[str] = field(default_factory=Counter)
    meshes: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    steps_again: int = 0
    positions: int = 0
    quarantined: int = 0
    lost: int = 0
    repeated: int = 0
    longest_wait_s: float = 0.0
    findings: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        events = ", ".join(f"{count} {name}" for name, count in sorted(self.events.items()))
        meshes = ", ".join(f"{count} {name}" for name, count in sorted(self.meshes.items()))
        return [
            f"seed            {self.seed}",
            f"events          {sum(self.events.values())}: {events}",
            f"meshes          {meshes}",
            f"steps           {self.steps}, and {self.steps_again} again after trainers crashed",
            f"positions       {self.positions} delivered, {self.quarantined} quarantined",
            f"recoveries      {sum(self.events.values())}; the longest took {self.longest_wait_s:.1f} s",
            f"losses          {self.lost}",
            f"repeats         {self.repeated}",
            *(f"BROKEN          {finding}" for finding in self.findings),
        ]


@dataclass
class Chaos:
    """One run. `redis`: the store is that server, and dies too; else it is SQLite, and goes with its service.

    The service may be started several times: `served` is the one that runs.
    """

    config: Path
    seed: int
    redis: RedisServer | None = None

    def __post_init__(self) -> None:
        self.loaded: LoadedConfig = load_config(self.config)
        self.report = Report(self.seed)
        self.history: dict[int, Contents] = {}
        self.kept: dict[int, StepDelivery] = {}
        self._passed_over: dict[int, list[tuple[str, int, int]]] = {}  # by step, of stores that are gone too
        self._rng = keyed_rng(self.seed, "chaos")
        self._port = free_port()
        self._stack = ExitStack()
        self._clock = self.config.parent / "clock"  # seconds that the processes' wall clock is off
        set_clock(self._clock, 0.0)
        self.served: Served

    def run(self, more: Callable[[Report], bool], say: Callable[[str], None]) -> Report:
        """Go on while `more`, then judge all that was delivered."""
        state: Mapping[str, Any] | None = None
        with self._stack:
            self._serve()
            while more(self.report):
                if self.redis is None and self._rng.random() < FORGETS:
                    self.report.events["service forgets"] += 1
                    self._service_forgets(state)
                mesh = MESHES[int(self._rng.integers(len(MESHES)))]
                state = self._life(mesh, state, say)
        self._judge(say)
        return self.report

    # ---- a trainer's life on one mesh

    def _life(
        self, mesh: Mesh, state: Mapping[str, Any] | None, say: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """Ranks of `mesh` read from `state` on, things happen, the trainer crashes; its last checkpoint."""
        name = ",".join(f"{axis}={size}" for axis, size in vars_of(mesh).items() if size > 1) or "dp=1"
        self.report.meshes[name] += 1
        keep = functools.partial(_kept, merge_rows=self.loaded.config.images.merge**2)
        with ExitStack() as stack:
            readers = {
                coords: stack.enter_context(
                    Reader(
                        f"127.0.0.1:{self._port}",
                        mesh=mesh,
                        coords=coords,
                        state=state,
                        keep=functools.partial(keep, coords=coords),
                        connect_timeout_s=90.0,
                    )
                )
                for coords in _all_coords(mesh)
            }
            for _ in range(int(self._rng.integers(1, 4))):
                self._round(list(readers.values()), say)
        checkpoint = self._collect(mesh, readers)
        say(f"mesh {name}: step {checkpoint['step']}, {self.report.events.total()} events")
        return checkpoint

    def _round(self, readers: Sequence[Reader], say: Callable[[str], None]) -> None:
        """Some steps, and something that happens while they are read."""
        count = int(self._rng.integers(3, 12))
        before = len(readers[0].steps)
        for reader in readers:
            reader.allow(count)
        witness = readers[int(self._rng.integers(len(readers)))]
        witness.wait(before + int(self._rng.integers(0, count)))
        began = time.monotonic()
        self._event(say)
        for reader in readers:
            reader.wait()
        self.report.longest_wait_s = max(self.report.longest_wait_s, time.monotonic() - began)

    def _collect(self, mesh: Mesh, readers: Mapping[Coords, Reader]) -> Mapping[str, Any]:
        first = next(iter(readers.values()))
        for step in sorted(first.steps):
            batches = [
                batch for coords, reader in readers.items() if not coords.tp for batch in reader.steps[step]
            ]
            states = {str(reader.states[step]) for reader in readers.values()}
            if len(states) > 1:
                self.report.findings.append(f"step {step}: state_dict differs between ranks")
            digest = batches[0].digest
            ranks = [batch.rank for batch in batches]
            delivery = StepDelivery(step, digest, ranks, first.states[step]["service"])
            self._add(delivery, mesh)
        # Trainers save every few steps, and lose those since.
        saved = sorted(first.steps)[int(self._rng.integers(len(first.steps) // 2, len(first.steps)))]
        checkpoint = first.states[saved]
        for step in [step for step in self.kept if step > saved]:
            del self.kept[step]
        return checkpoint

    def _add(self, delivery: StepDelivery, mesh: Mesh) -> None:
        cap = self.loaded.config.sequence_length
        self.report.findings += [str(finding) for finding in check_caps(delivery, str(mesh), cap)]
        contents = _contents(delivery)
        before = self.history.setdefault(delivery.step, contents)
        if before is not contents:
            self.report.steps_again += 1
            if before != contents:
                self.report.findings.append(
                    f"step {delivery.step} came again with another content, on {mesh}"
                )
        light = [
            RankBatch(b.dp, b.cp, b.microbatch, _spans_alone(b), b.sources, b.merge_rows)
            for b in delivery.batches
        ]
        self.kept[delivery.step] = StepDelivery(delivery.step, delivery.digest, light, delivery.state)

    # ---- events

    def _event(self, say: Callable[[str], None]) -> None:
        events = [self._kill, self._kill, self._stop, self._stop, self._two, self._all, self._service]
        events += [self._mixture_change, self._mixture_change_and_kill]
        if self.redis is None:
            events += [self._disk_is_full, self._clock_jump]
        else:
            events += [self._store_dies, self._store_is_full, self._store_and_planner]
        event = events[int(self._rng.integers(len(events)))]
        self.report.events[event.__name__.strip("_").replace("_", " ")] += 1
        event()

    def _pick(self) -> str:
        return ROLES[int(self._rng.integers(len(ROLES)))]

    def _outage(self) -> None:
        threading.Event().wait(float(self._rng.uniform(*OUTAGE_S)))  # the fault itself

    def _signal(self, name: str, number: signal.Signals) -> psutil.Process | None:
        """None where the role is not there just now."""
        process = self.served.roles().get(name)
        with contextlib.suppress(psutil.NoSuchProcess):
            if process is not None:
                process.send_signal(number)
                return process
        return None

    def _kill(self) -> None:
        self._signal(self._pick(), signal.SIGKILL)

    def _two(self) -> None:
        for name in self._rng.permutation(ROLES)[:2]:
            self._signal(str(name), signal.SIGKILL)

    def _all(self) -> None:
        for name in ROLES:
            self._signal(name, signal.SIGKILL)

    def _stop(self) -> None:
        process = self._signal(self._pick(), signal.SIGSTOP)
        self._outage()
        with contextlib.suppress(psutil.NoSuchProcess):
            if process is not None:
                process.send_signal(signal.SIGCONT)

    def _service(self) -> None:
        """The whole service dies, and is started again with the same store, at the same address."""
        self._end_service()
        self._serve()

    def _service_forgets(self, state: Mapping[str, Any] | None) -> None:
        """The same, and its store is gone with the machine, as the trainers are: their states must do.

        A change of the mixture that no state of theirs knows is gone, too: steps from there on are others.
        """
        self._end_service()
        self._read_passed_over()
        first = 0 if state is None else state["step"]
        if any(change["known_from"] >= first for change in self._made()):
            self.history = {step: found for step, found in self.history.items() if step < first}
            self._passed_over = {step: rows for step, rows in self._passed_over.items() if step < first}
        for path in (self.config.parent / ".dataloader-svc").glob("*.db*"):
            path.unlink()
        self._serve()

    def _mixture_change(self) -> None:
        change_mixture(f"127.0.0.1:{self._port}", self._rng)

    def _mixture_change_and_kill(self) -> None:
        self._kill()
        self._mixture_change()
        self._kill()

    def _disk_is_full(self) -> None:
        """For all that write the store. A service that ends for it is started again when there is room."""
        family = self.served.family()
        with full_disk(self.served.roles().values()):
            self._outage()
        if has_ended(self.served):
            psutil.wait_procs(family, 30.0)
            self._service_stack.close()
            self._serve()

    def _clock_jump(self) -> None:
        """The machine's clock is set, by up to two hours; a new service then meets the leases of the old."""
        set_clock(self._clock, float(self._rng.uniform(-7200.0, 7200.0)))
        if self._rng.random() < 0.5:
            self._service()

    def _store_dies(self) -> None:
        assert self.redis is not None
        self.redis.kill()
        self._outage()
        self.redis.start()

    def _store_is_full(self) -> None:
        assert self.redis is not None
        with contextlib.closing(self.redis.client()) as client:
            client.config_set("maxmemory", "1mb")
            self._outage()
            client.config_set("maxmemory", "0")

    def _store_and_planner(self) -> None:
        self._signal("planner-0", signal.SIGKILL)
        self._store_dies()

    def _serve(self) -> None:
        self._service_stack = ExitStack()
        self._stack.push(self._service_stack)
        clock = {"DATALOADER_FAULT_CLOCK": str(self._clock)}
        running = serve(self.config, "--address", f"127.0.0.1:{self._port}", **clock)
        self.served = self._service_stack.enter_context(running)

    def _end_service(self) -> None:
        family = self.served.family()
        self.served.process.kill()
        psutil.wait_procs(family, 30.0)  # orphans end themselves
        self._service_stack.close()

    # ---- the judge

    def _judge(self, say: Callable[[str], None]) -> None:
        report, config = self.report, self.loaded.config
        steps = [self.kept[step] for step in sorted(self.kept)]
        report.steps = len(steps)
        if [step.step for step in steps] != list(range(len(steps))):
            report.findings.append("the steps that the trainer kept have a gap")
            return
        say(f"judging {len(steps)} steps")
        skipped = self._skipped(len(steps))
        state = steps[-1].state
        waiting = [tuple(run[:5]) for run in state["waiting"]]
        rows = _rows(self.loaded)
        once = check_once(steps, skipped, waiting, state, rows, "all")
        spans = [
            span for step in steps for batch in step.batches if not batch.cp for span, _, _ in batch.spans()
        ]
        report.positions = len({span[:3] for span in spans})
        report.quarantined = len(skipped)
        report.repeated = len(spans) - len(set(spans))
        report.lost = sum("is lost" in str(finding) for finding in once)
        schedule = [entry.model_dump() for entry in config.mixture.schedule]
        largest = max(1.0, float(state["largest"]))
        mixture = check_mixture(steps, schedule, config.mixture.unit, largest, "all")[0]
        report.findings += [str(finding) for finding in (*once, *mixture)]
        say("reading the same steps from a job that nobody disturbs")
        for step, contents in self._undisturbed(len(steps)):
            if self.history[step] != contents:
                report.findings.append(f"step {step} is not what an undisturbed job delivers")
                break

    def _skipped(self, steps: int) -> list[tuple[str, int, int]]:
        """Positions that the records of the kept steps pass over."""
        self._read_passed_over()
        return [row for step, rows in self._passed_over.items() if step < steps for row in rows]

    def _read_passed_over(self) -> None:
        spec = job_spec(self.loaded, self.loaded.base_dir, "127.0.0.1:0")
        with contextlib.closing(open_store(spec.store, spec.base_dir)) as store:
            for part in lineage(store):
                for record in read_records(store, part.generation):
                    if part.first <= record.step < part.stop:
                        self._passed_over[record.step] = [
                            (record.sources[row.source], row.epoch, row.position)
                            for row in record.skipped
                            if row.reason != Reason.FILTERED
                        ]

    def _made(self) -> list[Any]:
        """The changes that the store knows of."""
        spec = job_spec(self.loaded, self.loaded.base_dir, "127.0.0.1:0")
        with contextlib.closing(open_store(spec.store, spec.base_dir)) as store:
            generation = current_generation(store)
            changes = () if generation is None else read_changes(store, generation)
        return [change.to_json() for change in changes]

    def _undisturbed(self, steps: int) -> Iterator[tuple[int, Contents]]:
        keep = functools.partial(_kept, coords=Coords(), merge_rows=self.loaded.config.images.merge**2)
        with tempfile.TemporaryDirectory() as scratch:
            config = Path(scratch) / "job.yaml"
            values = self.loaded.config.model_dump(mode="json", exclude_unset=True)
            values["store"] = "sqlite"
            write_config(config, values)
            changes = changes_in(self.kept[step] for step in range(steps))
            if changes:
                with serve(config) as served, Reader(served.address, keep=keep):
                    pass  # a job that has begun, and planned nothing
                tell(config, changes)
            with serve(config) as served, Reader(served.address, keep=keep) as reader:
                for step in range(steps):
                    reader.allow(1)
                    reader.wait()
                    batches = reader.steps.pop(step)
                    reader.steps[step] = []
                    ranks = [batch.rank for batch in batches]
                    yield step, _contents(StepDelivery(step, "", ranks, {}))


@dataclass(frozen=True, slots=True)
class _Kept:
    rank: RankBatch
    digest: str


def _kept(batches: Sequence[Batch], *, coords: Coords, merge_rows: int) -> list[_Kept]:
    """Copies: a batch's buffer is used again."""
    return [
        _Kept(
            RankBatch(
                coords.dp,
                coords.cp,
                batch.microbatch,
                {
                    name: np.array(values)
                    for name, values in {**batch.numpy, **batch.manifest.columns}.items()
                },
                batch.manifest.sources,
                merge_rows,
            ),
            batch.digest,
        )
        for batch in batches
    ]


def _contents(delivery: StepDelivery) -> Contents:
    contents = {}
    for span, content in reassemble(delivery).items():
        hasher = hashlib.blake2b(digest_size=12)
        for name, values in sorted(content.fields.items()):
            hasher.update(f"{name}{values.dtype}{values.shape}".encode() + values.tobytes())
        contents[span] = hasher.hexdigest()
    return contents


def _spans_alone(batch: RankBatch) -> dict[str, Any]:
    return {name: values for name, values in batch.arrays.items() if name.startswith("span_")}


def _rows(loaded: LoadedConfig) -> dict[str, int]:
    config, base = loaded.config, loaded.base_dir
    storage, cache = Storage.of(config, base), base / config.index_cache
    return {
        name: SourceReader(name, source, base, cache, config.seed, storage=storage).num_rows
        for name, source in config.sources.items()
    }


def _all_coords(mesh: Mesh) -> list[Coords]:
    return [
        Coords(dp=dp, cp=cp, tp=tp) for dp in range(mesh.dp) for cp in range(mesh.cp) for tp in range(mesh.tp)
    ]


def vars_of(mesh: Mesh) -> dict[str, int]:
    """Axis -> size."""
    return {axis: getattr(mesh, axis) for axis in ("dp", "cp", "tp", "pp")}


def write_job(folder: Path, *, bad: bool, store: str = "sqlite") -> Path:
    """The tiny job of `real_job`; `bad`: with rows of every source that can't be used."""
    data = write_data(folder / "data")
    if bad:
        lines = (data / "notes" / "bad.jsonl").open("w")
        with lines:
            lines.write('{"text": "   "}\n{"text": 7}\nno json\n{"other": "x"}\n{"text": "a good one"}\n' * 3)
    values = job_values(data, store=store)
    if bad:
        values["sources"]["notes"] |= {"max_bad_fraction": 0.5}
    return write_config(folder / "job.yaml", values)


@contextlib.contextmanager
def made(folder: Path, seed: int, *, bad: bool, with_redis: bool) -> Iterator[Chaos]:
    """A run on tiny data of its own, with its store."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder / "redis")) if with_redis else None
        store = "sqlite" if server is None else f"redis://{server.address}/0"
        yield Chaos(write_job(folder, bad=bad, store=store), seed, server)


def main() -> int:
    """Until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--store", choices=("sqlite", "redis"), default="redis")
    parser.add_argument("--clean", action="store_true", help="no bad samples in the data")
    arguments = parser.parse_args()
    seed = (
        arguments.seed if arguments.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    )
    end = time.monotonic() + arguments.seconds
    with (
        tempfile.TemporaryDirectory(prefix="dataloader-soak-") as scratch,
        made(Path(scratch), seed, bad=not arguments.clean, with_redis=arguments.store == "redis") as chaos,
    ):
        print(f"soak: seed {seed}, store {arguments.store}, {arguments.seconds:g} s", flush=True)
        report = chaos.run(lambda _: time.monotonic() < end, lambda text: print(f"soak: {text}", flush=True))
    print("\n".join(report.lines()))
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
