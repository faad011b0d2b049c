"""`dataloader-svc audit`: run steps on several meshes in the real processes and prove the contracts.

Collects what every rank of every mesh received and what the plan log says, and hands both to
`observe/audit.py`, which shares no code with those who made them.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from dataloader_client import Batch, Coords, Mesh
from dataloader_svc.cli.audit_log import audit_log
from dataloader_svc.cli.meshes import MeshType, Ranks, Step, ranks, short
from dataloader_svc.cli.output import (
    config_argument,
    console,
    examples,
    json_option,
    print_json,
    progress_bars,
    table,
)
from dataloader_svc.cli.preflight import load_checked
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.config.schema import Config
from dataloader_svc.engine.job import Job
from dataloader_svc.engine.spec import job_spec, private
from dataloader_svc.errors import Reason
from dataloader_svc.observe.audit import (
    Finding,
    Position,
    RankBatch,
    StepDelivery,
    check_caps,
    check_mixture,
    check_once,
    check_size,
    compare,
)
from dataloader_svc.observe.limits import check_limits
from dataloader_svc.observe.needed import Received, Shape, check_needed
from dataloader_svc.planner.history import read_records
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.storage import Storage
from dataloader_svc.store.open import open_store

CONTRACTS = {
    "digest": "the same set of samples in each step on every mesh",
    "bytes": "all ranks' bytes put together equal the first mesh's",
    "pieces": "no piece is missing or extra on any mesh",
    "once": "every position is delivered once, quarantined, filtered, or waiting",
    "mixture": "every source is within one sample of its target after every step",
    "caps": "no sequence is above sequence_length; all ranks have as many microbatches",
    "limits": "no sequence holds more patches, mel frames or media than strategy.limits allows",
    "size": "a step that is given in samples has exactly so many",
    "needed": "no rank gets a byte that its pipeline stage and its slice do not need",
}


@dataclass(slots=True)
class MeshRun:
    """What one mesh's run gave."""

    mesh: str
    steps: list[StepDelivery] = field(default_factory=list)
    skipped: list[Position] = field(default_factory=list)
    readmitted: list[Position] = field(default_factory=list)
    filtered: int = 0
    metrics: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    needed: Counter[str] = field(default_factory=Counter)  # bytes of all ranks, by kind of pipeline stage
    findings: list[Finding] = field(default_factory=list)  # of what only a whole mesh's ranks show

    def mean(self, name: str) -> float:
        """Of a plan metric over the steps."""
        return self.metrics[name] / max(1, len(self.steps))


@click.command(
    epilog=examples(
        "dataloader-svc audit mixture.yaml",
        "dataloader-svc audit mixture.yaml --steps 20 --mesh dp=1 --mesh dp=2,cp=2 --json",
        "dataloader-svc audit mixture.yaml --log",
    )
)
@config_argument
@click.option("--steps", default=20, show_default=True, help="Steps to run on each mesh.")
@click.option(
    "--mesh",
    "meshes",
    multiple=True,
    type=MeshType(),
    help="dp=2,cp=2; repeat for more.  [default: dp=1, dp=2, dp=4]",
)
@click.option("--log", is_flag=True, help="Count the job's own plan log instead, as it stands in the store.")
@click.option("--store", help="With --log: the state store to read, instead of the configured one.")
@json_option
def command(
    config: Path, steps: int, meshes: tuple[Mesh, ...], store: str | None, *, log: bool, as_json: bool
) -> int:
    """Run STEPS steps on each mesh and check the service's promises.

    Starts the real processes once a mesh, with an empty state store, and reads as the trainer's ranks would.
    Exit code 1 when a contract is broken; the first step, rank and field that differs is named.

    With --log, nothing is started: generations, steps, skipped steps and samples of the job's plan log are
    counted, every position once, and its mixture is compared with the schedule and the changes made to it.
    """
    if log:
        return audit_log(load_config(config), store, as_json=as_json)
    loaded = load_checked(config)
    meshes = meshes or (Mesh(dp=1), Mesh(dp=2), Mesh(dp=4))
    runs: list[MeshRun] = []
    findings: list[Finding] = []
    with progress_bars() as progress:
        for mesh in meshes:
            task = progress.add_task(f"mesh {short(mesh)}", total=steps)
            run = run_mesh(loaded, mesh, steps, partial(progress.advance, task))
            findings += judge(loaded, run, runs[0] if runs else run)
            if runs:  # only the first mesh's bytes are needed again
                run.steps = [StepDelivery(s.step, s.digest, (), s.state) for s in run.steps]
            runs.append(run)
    return _report(loaded.config, runs, findings, as_json=as_json)


def run_mesh(loaded: LoadedConfig, mesh: Mesh, steps: int, advance: Callable[[], None]) -> MeshRun:
    """Start the service, read `steps` steps on all ranks, stop it, and read its log."""
    run, shape = MeshRun(short(mesh)), _shape(loaded.config)
    with tempfile.TemporaryDirectory(prefix="dataloader-audit-") as scratch:
        folder = Path(scratch)
        spec = job_spec(loaded, folder, "127.0.0.1:0", f"sqlite:///{folder / 'audit.db'}")
        rows = (loaded.config.images.merge**2, loaded.config.mel.frames_per_token)
        counted: Counter[Coords] = Counter()
        with Job(private(spec)) as job, ranks(job.address, mesh, token=job.token, peers=True) as group:
            for step in group.steps(steps):
                run.steps.append(_delivery(step, group, rows))
                received = list(_received(step, group, counted))
                found = check_needed(received, mesh.pp, mesh.cp, shape, run.steps[-1].step, run.mesh)
                run.findings += found[0]
                run.needed.update(found[1])
                first = next(iter(step.values()))[0]
                run.metrics.update(first.metrics)
                advance()
        store = open_store(spec.store, spec.base_dir)
        try:
            last = run.steps[-1].step if run.steps else -1
            for record in read_records(store):
                if record.step <= last:
                    run.skipped += [(record.sources[s.source], s.epoch, s.position) for s in record.skipped]
                    run.readmitted += [
                        (record.sources[r.source], r.epoch, r.position) for r in record.readmitted
                    ]
                    run.filtered += sum(s.reason == Reason.FILTERED for s in record.skipped)
        finally:
            store.close()
    run.tokens = sum(
        span[4] for step in run.steps for b in step.batches if b.cp == 0 for span, _, _ in b.spans()
    )
    return run


def _delivery(step: Step, group: Ranks, rows: tuple[int, int]) -> StepDelivery:
    """`rows`: patches and mel frames of one token. Stages of a pipeline are put together."""
    stages: dict[Coords, list[dict[str, Any]]] = {}
    for coords, microbatches in step.items():
        if coords.tp == 0:
            parts = stages.setdefault(replace(coords, pp=0), [{} for _ in microbatches])
            for part, batch in zip(parts, microbatches, strict=True):
                part |= batch.numpy | batch.manifest.columns
    batches = [
        RankBatch(coords.dp, coords.cp, batch.microbatch, part, batch.manifest.sources, *rows)
        for coords, parts in stages.items()
        for part, batch in zip(parts, step[coords], strict=True)
    ]
    first: Batch = next(iter(step.values()))[0]
    states = [loader.state_dict() for loader in group.loaders.values()]
    if any(state != states[0] for state in states):
        raise click.ClickException(f"step {first.step}: state_dict() differs between ranks")
    return StepDelivery(first.step, first.digest, batches, states[0]["service"])


def _received(step: Step, group: Ranks, counted: Counter[Coords]) -> Iterator[Received]:
    """What each rank got. `counted`: bytes that their clients had counted before; becomes those of now."""
    for coords, microbatches in step.items():
        total = group.loaders[coords].stats.num_bytes
        parts = [batch.numpy | batch.manifest.columns for batch in microbatches]
        place = (coords.dp, coords.cp, coords.tp, coords.pp)
        yield Received(*place, parts, total - counted[coords])
        counted[coords] = total


def _shape(config: Config) -> Shape:
    images, mel = config.images, config.mel
    return Shape(
        *(config.layout == "padded", images.merge, 3 * images.patch**2, mel.bins, mel.frames_per_token),
        config.ensure_modality,
    )


def judge(loaded: LoadedConfig, run: MeshRun, reference: MeshRun) -> list[Finding]:
    """All contracts on one mesh's run."""
    config = loaded.config
    findings: list[Finding] = run.findings[:1]
    if len(run.steps) != len(reference.steps):
        text = f"{len(run.steps)} steps, {len(reference.steps)} on mesh {reference.mesh}"
        findings.append(Finding("pieces", run.mesh, None, "", text))
    for step, same in zip(run.steps, reference.steps, strict=False):
        findings += check_caps(step, run.mesh, config.sequence_length)
        findings += check_limits(step, run.mesh, config.strategy.limits.given)
        if config.global_batch.samples is not None:
            findings += check_size(step, run.mesh, config.global_batch.samples)
        if run is not reference:
            findings += compare(same, step, run.mesh)
        if findings:
            return findings
    if run.steps:
        state = run.steps[-1].state
        waiting = [tuple(run[:5]) for run in state["waiting"]]  # (source, epoch, position, start, length)
        rows = _rows(loaded)
        findings += check_once(run.steps, run.skipped, waiting, state, rows, run.mesh, run.readmitted)
        schedule = [entry.model_dump() for entry in config.mixture.schedule]
        steps = run.steps
        if config.mixture.exhausted != "repeat":  # shares are promised until a source has nothing left
            steps = list(itertools.takewhile(partial(_all_go_on, rows=rows), steps))
        largest = max(1.0, float(steps[-1].state["largest"])) if steps else 1.0
        findings += check_mixture(steps, schedule, config.mixture.unit, largest, run.mesh)[0]
    return findings


def _all_go_on(step: StepDelivery, *, rows: Mapping[str, int]) -> bool:
    """Whether every source has something left after the step."""
    return all(reached["position"] < rows[name] for name, reached in step.state["sources"].items())


def _rows(loaded: LoadedConfig) -> Mapping[str, int]:
    """Rows of an epoch of each source, by its own index."""
    config = loaded.config
    cache = loaded.base_dir / config.index_cache
    storage = Storage.of(config, loaded.base_dir)
    return {
        name: SourceReader(name, source, loaded.base_dir, cache, config.seed, storage=storage).num_rows
        for name, source in config.sources.items()
    }


def _report(config: Config, runs: list[MeshRun], findings: list[Finding], *, as_json: bool) -> int:
    broken = {finding.contract for finding in findings}
    rows = [_row(run) for run in runs]
    if as_json:
        print_json(
            {
                "ok": not findings,
                "contracts": {name: name not in broken for name in CONTRACTS},
                "findings": [str(finding) for finding in findings],
                "meshes": rows,
            }
        )
        return 1 if findings else 0
    out = console()
    columns = (
        "mesh",
        ">steps",
        ">tokens",
        ">filtered",
        ">quarantined",
        ">packing",
        ">llm",
        ">arrival",
        ">floor",
    )
    ratios = ("llm_imbalance", "llm_imbalance_arrival", "llm_floor")
    cells = [
        (
            *(
                r["mesh"],
                r["steps"],
                f"{r['tokens']:,}",
                r["filtered"],
                r["quarantined"],
                f"{r['packing_efficiency']:.4f}",
            ),
            *(f"{r[name]:.3f}" for name in ratios),
        )
        for r in rows
    ]
    out.print(table(f"{config.job}: imbalance is the slowest rank over the mean", columns, cells))
    if config.strategy.waiting is not None and rows:
        delay, error = rows[0]["delay_steps"], rows[0]["mixture_error"]
        out.print(f"a token waited {delay:.2f} steps; what was placed is {error:.2%} from the mixture")
    for row in rows:
        needed = ", ".join(f"{stage} {count:,}" for stage, count in row["bytes_a_step"].items())
        out.print(f"{row['mesh']}: bytes a step to all ranks, by pipeline stage: {needed}")
        for name, spared in row["remedies"].items():
            out.print(f"{row['mesh']}: remedy {name} spared {spared:.2%} of a step's time")
    for name, meaning in CONTRACTS.items():
        out.print(f"{'BROKEN' if name in broken else 'holds '}  {name}: {meaning}", markup=False)
    for finding in findings:
        out.print(str(finding), markup=False, soft_wrap=True)
    return 1 if findings else 0


def _row(run: MeshRun) -> dict[str, Any]:
    names = (
        *("packing_efficiency", "llm_imbalance", "llm_imbalance_arrival", "llm_floor"),
        *("encoder_imbalance", "encoder_imbalance_arrival", "encoder_floor", "mixture_deviation"),
        *("mixture_error", "delay_steps"),
    )
    return {
        "mesh": run.mesh,
        "steps": len(run.steps),
        "tokens": run.tokens,
        "filtered": run.filtered,
        "quarantined": len(run.skipped) - run.filtered,
        "digests": [step.digest for step in run.steps],
        "bytes_a_step": {stage: round(count / max(1, len(run.steps))) for stage, count in run.needed.items()},
        **{name: run.mean(name) for name in names},
        "remedies": {
            name.removeprefix("remedy_"): run.mean(name) for name in run.metrics if name.startswith("remedy_")
        },
    }
