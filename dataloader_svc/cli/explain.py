"""`dataloader-svc explain`: which rows of which shards a step and rank got, and why there, from the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click

from dataloader_balancers import Remedy, remedies, segment_sum
from dataloader_client import Coords, Mesh, MeshMismatchError
from dataloader_svc.cli.explain_view import (
    Explanation,
    SkippedView,
    cp_slices,
    explanation_json,
    explanation_lines,
    of_rank,
)
from dataloader_svc.cli.meshes import MeshType
from dataloader_svc.cli.output import (
    config_argument,
    console,
    examples,
    json_option,
    print_json,
    progress_bars,
)
from dataloader_svc.cli.plan_log import NoPlans, PlanLog
from dataloader_svc.cli.rows import Rows, find_rows
from dataloader_svc.cli.step_view import sequences_of
from dataloader_svc.config.digest import made_plans
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.config.schema import Config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.errors import MeshError, StateError
from dataloader_svc.planner.calibration import Factors, factors_at, read_factors
from dataloader_svc.planner.graph import plan_trace, strategy_graph
from dataloader_svc.planner.history import read_changes
from dataloader_svc.planner.place import MeshSize, Placement, Strategy, check_mesh, place
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.session import Generation, Session
from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.store.base import Store, shown
from dataloader_svc.store.open import open_existing
from dataloader_svc.store.replaced_log import replaced


@click.command(
    epilog=examples(
        "dataloader-svc explain mixture.yaml --step 1200",
        "dataloader-svc explain mixture.yaml --step 1200 --rank 3",
        "dataloader-svc explain mixture.yaml --step 1200 --mesh dp=8,cp=2 --rank 3 --json",
    )
)
@config_argument
@click.option("--step", required=True, type=click.IntRange(min=0), help="Which step.")
@click.option("--rank", type=click.IntRange(min=0), help="Only what this global rank of the mesh gets.")
@click.option("--mesh", type=MeshType(), help="dp=2,cp=2.  [default: the last session's]")
@click.option("--store", help="State store to read, instead of the configured one.")
@json_option
def command(
    config: Path, step: int, rank: int | None, mesh: Mesh | None, store: str | None, *, as_json: bool
) -> None:
    """Say which rows of which shards made up a step, and which rank got them.

    Reads the plan log: works while the job runs and after it has ended.
    """
    loaded = load_config(config)
    explained = explain(loaded, step, rank, mesh, store)
    if as_json:
        print_json(explanation_json(explained))
        return
    out = console()
    for line in explanation_lines(explained):
        out.print(line)


def explain(
    loaded: LoadedConfig, step: int, rank: int | None, mesh: Mesh | None, store_url: str | None
) -> Explanation:
    """What the log says of a step. StateError: no log, or no such step; MeshError: no such mesh or rank."""
    config = loaded.config
    generation, plan, session, factors = _from_log(loaded, step, store_url)
    if mesh is None:
        sizes = config.mesh if session is None else session.mesh
        mesh = Mesh(dp=sizes.dp, cp=sizes.cp, tp=sizes.tp, pp=sizes.pp)
    coords = _coords(config, plan, mesh, rank)
    strategy = Strategy.of(config, loaded.base_dir)
    graph = strategy_graph(config, step, loaded.base_dir)
    placement = place(plan, _size(mesh), strategy, () if factors is None else factors.parts)
    numbers = [*plan.pieces.source.tolist(), *(source for source, _, _ in plan.skipped)]
    names = sorted({plan.sources[number] for number in numbers})
    with progress_bars() as progress:
        rows = find_rows(loaded, plan.state, names, progress)
    notes = [str(skip) for skip in plan.state.skips if skip.first <= step < skip.stop]
    notes += [f"{name}: rows unknown: {reason}" for name, reason in sorted(rows.notes.items())]
    if factors is not None and factors.parts:
        parts = ", ".join(f"{factor:.3g}" for factor in factors.parts)
        notes.append(f"placed by costs fitted to step times, too: parts of the work times {parts}")
    notes += _followed(loaded, generation, plan, store_url)
    notes += _replaced_then(loaded, step, store_url)
    if generation.parent is not None:
        notes.append(
            f"generation {generation.number} begins at step {generation.base.step}, after generation "
            f"{generation.parent}: {generation.reason}"
        )
    elif generation.base.step:
        notes.append(
            f"generation {generation.number} begins at step {generation.base.step}: {generation.reason}"
        )
    if not made_plans(generation.config_hash, config, loaded.base_dir):
        notes.append("the configuration has changed since; costs and places are by the file as it is now")
    sequences = of_rank(sequences_of(plan, strategy, rows.row), placement, coords)
    slices = {}
    if coords is not None and mesh.cp > 1:
        slices = cp_slices(sequences, mesh.cp, coords.cp, config.strategy.context_parallel)
    return Explanation(
        job=config.job,
        generation=generation.number,
        plan=plan,
        mesh=mesh,
        rank=None if rank is None or coords is None else (rank, coords),
        balance=config.strategy.balance,
        placement=placement,
        sequences=sequences,
        slices=slices,
        skipped=tuple(_skipped(plan, rows)),
        notes=tuple(notes),
        trace=plan_trace(graph, plan, placement, _size(mesh), strategy),
        remedies=_remedies(config, plan, mesh, strategy, placement),
    )


def _remedies(
    config: Config, plan: Plan, mesh: Mesh, strategy: Strategy, placement: Placement
) -> tuple[Remedy, ...]:
    """What would spare time of the language model, beside what was applied; in strict mode only what keeps
    the step's samples.
    """
    costs = segment_sum(strategy.llm.of_documents(plan.pieces.length), plan.sequence_offsets)
    equal = strategy.equal_counts and placement.remedy != "unequal"
    per_rank = -(-plan.num_sequences // mesh.dp) if equal else None
    return remedies(costs, mesh.dp, per_rank=per_rank, strict=config.strategy.mode == "strict")


def _skipped(plan: Plan, rows: Rows) -> Iterator[SkippedView]:
    """With the rows of filtered ones too, which the log doesn't name: there may be very many."""
    for source, epoch, row in plan.skipped:
        sample = SampleId(plan.sources[source], epoch, row.position)
        place = RowRef(row.shard, row.row) if row.shard else rows.row(sample)
        yield SkippedView(sample, row.reason, row.detail, place)


def _from_log(
    loaded: LoadedConfig, step: int, store_url: str | None
) -> tuple[Generation, Plan, Session | None, Factors | None]:
    """The plan of the step, the life of the log that it belongs to, the last session, and what the parts of
    the step's cost were multiplied with.
    """
    config = loaded.config
    spec = job_spec(loaded, loaded.base_dir, "127.0.0.1:0", store_url)
    opened = open_existing(spec.store, spec.base_dir)
    if opened is None:
        raise StateError(
            f"job {config.job!r} has no plan log: there is no store {shown(spec.store)}. Has the job run "
            "with this file? --store names another store"
        )
    with closing(opened) as store:
        try:
            log = PlanLog.of(store)
            generation, plan = log.read(step, config.sequence_length)
        except NoPlans as error:
            raise StateError(f"job {config.job!r} has no plan log: {shown(spec.store)}: {error}") from None
        except StateError as error:
            error.add_note(f"job {config.job!r}, store {shown(spec.store)}")
            raise
        factors = factors_at(read_factors(store, generation.number), step)
        return generation, plan, log.session, factors


def _followed(loaded: LoadedConfig, generation: Generation, plan: Plan, store_url: str | None) -> list[str]:
    """A sentence on the losses that the step's weights follow."""
    made = [each for each in plan.state.mixture if each.at_step <= plan.step and each.over == 0]
    if not made or made[-1].learned is None:
        return []
    last, learned = made[-1], made[-1].learned
    with closing(_store(loaded, store_url)) as store:
        whole = [each.learned for each in read_changes(store, generation) if each.id == last.id]
    known = whole[0].losses if whole and whole[0] is not None else {}
    losses = ", ".join(f"{name} lost {loss:.4g}" for name, loss in sorted(known.items()))
    weights = " ".join(f"{name}={share:.4g}" for name, share in sorted(last.weights.items()))
    why = f"in the period before step {learned.before}" + (f" {losses}" if losses else "")
    return [f"weights follow losses: {learned.rule} made {weights}, from step {last.at_step} on: {why}"]


def _store(loaded: LoadedConfig, store_url: str | None) -> Store:
    """That a step was read from."""
    spec = job_spec(loaded, loaded.base_dir, "127.0.0.1:0", store_url)
    opened = open_existing(spec.store, spec.base_dir)
    assert opened is not None, "the step was read from it"
    return opened


def _replaced_then(loaded: LoadedConfig, step: int, store_url: str | None) -> list[str]:
    """A sentence on each loader that was replaced about when the step was planned or built."""
    near = 2 * loaded.config.planner.ahead
    with closing(_store(loaded, store_url)) as store:
        return [
            f"{row.loader} was {row.kind} when step {row.step} came next, and was replaced: it {row.why}"
            for row in replaced(store)
            if abs(row.step - step) <= near
        ]


def _coords(config: Config, plan: Plan, mesh: Mesh, rank: int | None) -> Coords | None:
    """The rank's place. MeshError where the step, as it was planned, does not fit the mesh."""
    if config.global_batch.samples is None:  # the log may be of other steps than the file is of now
        batch = config.global_batch.model_copy(update={"sequences": plan.num_sequences, "tokens": None})
        config = config.model_copy(update={"global_batch": batch})
    check_mesh(config, _size(mesh))
    try:
        return None if rank is None else mesh.coords(rank)
    except MeshMismatchError as error:
        raise MeshError(f"--rank: {error}") from None


def _size(mesh: Mesh) -> MeshSize:
    return MeshSize(dp=mesh.dp, cp=mesh.cp, tp=mesh.tp, pp=mesh.pp)
