"""`dataloader-svc simulate`: what strategies would do for a job, before it runs or after it was slow."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.progress import Progress

from dataloader_svc.cli.output import console, examples, json_option, print_json, progress_bars, table
from dataloader_svc.cli.preflight import preflight
from dataloader_svc.cli.simulate_declared import declared_steps, read_declared, with_declared
from dataloader_svc.cli.simulate_files import LLM, PATCH_COST, as_json, draw_steps, mixture_of, read_lengths
from dataloader_svc.cli.simulate_packing import PackRow, of_lengths, of_plans, variants
from dataloader_svc.cli.simulate_plans import Planning, placed_plans
from dataloader_svc.cli.simulate_strategies import Declared, Layout, Outcome, Placed, compare, strategies
from dataloader_svc.cli.simulate_trace import (
    compare_trace,
    read_trace,
    trace_floor,
    trace_strategies,
    unequal_stages,
)
from dataloader_svc.cli.simulate_view import Section, outcome_section, packers_section, trace_section
from dataloader_svc.cli.simulate_work import Work
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.errors import ConfigProblems
from dataloader_svc.planner.place import MeshSize, check_mesh
from dataloader_svc.planner.plan import Plan

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_COUNT = click.IntRange(min=1)
_LENGTHS_DP, _LENGTHS_STEPS, _CONFIG_STEPS, _SAMPLES = 64, 30, 20, 32


class MixtureType(click.ParamType[dict[str, float]]):
    """A click parameter type: `web=0.7,text=0.3` to weights by name."""

    name = "mixture"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        """Parse, or fail with what is allowed."""
        if isinstance(value, dict):
            return value
        weights: dict[str, float] = {}
        for part in str(value).split(","):
            name, _, number = part.partition("=")
            try:
                weights[name] = float(number)
            except ValueError:
                self.fail(f"{part!r}: expected DATASET=WEIGHT,...", param, ctx)
            if not 0 <= weights[name] < float("inf"):
                self.fail(f"{part!r}: weights are finite and not negative", param, ctx)
        return weights


class OutType(click.Path):
    """A click parameter type: a path that ends in .html or .png."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click.Path, or fail."""
        if Path(value).suffix not in (".html", ".png"):
            self.fail(f"{str(value)!r}: a report ends in .html or .png", param, ctx)
        return super().convert(value, param, ctx)


@click.command(
    epilog=examples(
        "dataloader-svc simulate mixture.yaml --dp 64 --cp 4 --steps 200",
        "dataloader-svc simulate mixture.yaml --dp 8 --dp 16 --dp 32 --pp 4 --out report.html",
        "dataloader-svc simulate --lengths lengths.parquet --dp 64 --samples-per-rank 32 --json",
        "dataloader-svc simulate --lengths lengths.parquet --strategy mine:strategy",
        "dataloader-svc simulate --trace trace.parquet --json",
    )
)
@click.argument("config", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--lengths", type=_FILE, help="A parquet file of sample lengths, instead of CONFIG.")
@click.option("--trace", type=_FILE, help="A parquet file of a job's operations, instead of CONFIG.")
@click.option("--dp", type=_COUNT, multiple=True, help="Data-parallel ranks.  [default: the mesh's; 64]")
@click.option(
    "--cp", type=_COUNT, multiple=True, help="Context-parallel ranks of each.  [default: the mesh's; 1]"
)
@click.option("--pp", type=_COUNT, multiple=True, help="Pipeline stages of each.  [default: the mesh's; 1]")
@click.option(
    "--group-size", type=_COUNT, multiple=True, help="Balance among so many dp ranks.  [default: all]"
)
@click.option(
    "--sequence-length", type=_COUNT, multiple=True, help="Longest sequence.  [default: CONFIG's; 32768]"
)
@click.option("--chunks", type=_COUNT, default=1, show_default=True, help="Interleaved parts of a stage.")
@click.option("--samples-per-rank", type=_COUNT, help=f"Of --lengths, in a step.  [default: {_SAMPLES}]")
@click.option(
    "--steps", type=_COUNT, help=f"Steps.  [default: {_CONFIG_STEPS}; of --lengths {_LENGTHS_STEPS}]"
)
@click.option(
    "--mix", type=MixtureType(), help="Of --lengths: ai2d_train_12k=0.2,text=0.8.  [default: see above]"
)
@click.option("--strategy", help="One more, of your own: a YAML file with `steps`, or MODULE:FUNCTION.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of --lengths' draws.")
@click.option(
    "--equal-counts/--free-counts",
    default=None,
    help="Whether ranks have as many items each.  [default: equal; free with --lengths]",
)
@click.option(
    "--out", type=OutType(dir_okay=False, path_type=Path), help="Write a picture: report.html or .png."
)
@json_option
def command(
    config: Path | None,
    lengths: Path | None,
    trace: Path | None,
    out: Path | None,
    *,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict step time, idle share and imbalance of a job under every strategy.

    Give one of three. CONFIG: its first steps, planned from real probes (rows read, texts tokenized, headers
    of media), nothing decoded. --lengths: steps drawn from a file with columns dataset, tokens, image_tiles.
    --trace: a recorded job, replayed; it tells how slow the job was against equal work.

    Strategies stand beside arrival order (what a DataLoader gives), balance by tokens, and the floor, which
    no placement of whole items can pass. llm and encoder are max / mean over dp ranks; step is the time over
    that of equal work on the same ranks; idle is the share of the devices' time without work. An option may
    be repeated: all combinations are simulated. A second table has packers side by side.

    --lengths draws, unless --mix says otherwise, AI2D 10 %, ChartQA 15 %, DocVQA 15 %, SynthDoG 10 % from the
    file, and 50 % text of lognormal(6.5, 1.4) tokens up to the sequence length; a file with other datasets is
    mixed by rows. An LLM costs 24576 L + L^2 (a width of 2048), a tile 9.4e6 in that unit. Figures are means
    of 30 steps, each with a seed of its own.
    """
    if (config is not None) + (lengths is not None) + (trace is not None) != 1:
        raise click.UsageError("give one of CONFIG, --lengths and --trace")
    with progress_bars() as progress:
        if trace is not None:
            result, sections = _of_trace(trace, given, progress)
        elif lengths is not None:
            result, sections = _of_lengths(lengths, given, progress)
        else:
            assert config is not None
            result, sections = _of_config(config, given, progress)
    if out is not None:
        from dataloader_svc.cli.simulate_picture import write_report

        write_report(out, sections)
    if as_json:
        print_json(result)
        return
    shown = console()
    for section in sections:
        shown.print(table(section.title, section.columns, section.rows))
        for line in section.notes:
            shown.print(line, markup=False, soft_wrap=True)
        shown.print()


Found = tuple[dict[str, Any], list[Section]]


def _of_trace(path: Path, given: Mapping[str, Any], progress: Progress) -> Found:
    wrong = [name for name, value in given.items() if value not in (None, (), 0, 1)]
    if wrong:
        option = wrong[0].replace("_", "-")
        raise click.UsageError(f"--{option} has no meaning with --trace: the job is as it was")
    recorded = read_trace(path)
    task = progress.add_task("replaying", total=len(trace_strategies()) + 1)
    rows = compare_trace(recorded, time.perf_counter, lambda: progress.advance(task))
    least, even = trace_floor(recorded), unequal_stages(recorded)
    steps, dp, microbatches, stages = recorded.forward.shape
    job = {"steps": steps, "dp": dp, "microbatches": microbatches, "pp": stages}
    result = {
        "job": job,
        "slowdown": rows["arrival"].slowdown,
        "strategies": {name: row.as_json() for name, row in rows.items()},
        "floor": {"llm": max(least), "encoder": 1.0, "stages": list(least)},
        "equal_microbatches": {"slowdown": even},
    }
    return result, [trace_section(path.name, job, rows, least, even)]


def _of_lengths(path: Path, given: Mapping[str, Any], progress: Progress) -> Found:
    known = read_lengths(path)
    mixture = mixture_of(known, given["mix"])
    per_rank, steps = given["samples_per_rank"] or _SAMPLES, given["steps"] or _LENGTHS_STEPS

    def work(layout: Layout, length: int) -> Sequence[Work]:
        drawn = draw_steps(
            known,
            mixture,
            layout.dp * per_rank,
            steps,
            seed=given["seed"],
            sequence_length=length,
            cp=layout.cp,
        )
        return list(drawn)

    layouts = _layouts(given, Layout(_LENGTHS_DP, equal_counts=bool(given["equal_counts"])))
    cases = [(layout, length) for length in given["sequence_length"] or (32_768,) for layout in layouts]
    own = None if given["strategy"] is None else read_declared(given["strategy"])

    def more(_: Layout, length: int) -> Mapping[str, Declared]:
        def declared(steps: Sequence[Work], layout: Layout) -> tuple[Sequence[Work], Sequence[Placed]]:
            assert own is not None, "it is not asked for otherwise"
            return declared_steps(own, steps, layout, length, PATCH_COST / layout.cp)

        return {} if own is None else {"declared": declared}

    def packers(layout: Layout, length: int) -> Mapping[str, PackRow]:
        return of_lengths(work(layout, length), layout, length, LLM, time.perf_counter)

    outcomes = _compared(cases, work, more, progress)
    source = {"file": str(path), "samples_per_rank": per_rank, **as_json(mixture, cases[0][1], given["seed"])}
    return _result(cases, outcomes, [packers(*case) for case in cases], source, path.name)


def _of_config(path: Path, given: Mapping[str, Any], progress: Progress) -> Found:
    for name in ("samples_per_rank", "mix", "seed"):
        if given[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} belongs to --lengths: CONFIG has its own")
    steps = given["steps"] or _CONFIG_STEPS
    with preflight(path) as found, ThreadPoolExecutor(1, "probe") as pool:
        if found.problems or found.loaded is None:
            raise ConfigProblems(list(found.problems))
        config = found.loaded.config
        mesh = config.mesh
        equal = given["equal_counts"] is not False
        layouts = _layouts(given, Layout(mesh.dp, mesh.cp, mesh.pp, equal_counts=equal))
        loaded = {
            length: _with_length(found.loaded, length)
            for length in given["sequence_length"] or (config.sequence_length,)
        }
        cases = [(layout, length) for length in loaded for layout in layouts]
        for layout, length in cases:
            check_mesh(loaded[length].config, MeshSize(layout.dp, layout.cp, 1, layout.pp))
        planned = {}
        for length, each in loaded.items():
            task = progress.add_task("planning", total=None)
            planned[length] = _variants(each, given["strategy"], Planning(each, found.rules, pool), steps)
            progress.remove_task(task)

        def work(layout: Layout, length: int) -> Sequence[Work]:
            one = planned[length]["job"]
            return placed_plans(one.plans, one.loaded)((), layout)[0]

        def more(_: Layout, length: int) -> Mapping[str, Declared]:
            each = planned[length]
            own = [name for name in ("job", "declared") if name in each]
            return {name: placed_plans(each[name].plans, each[name].loaded) for name in own}

        outcomes = _compared(cases, work, more, progress)
    packers = [
        {name: of_plans(one.plans, one.loaded, layout, one.seconds) for name, one in planned[length].items()}
        for layout, length in cases
    ]
    source = {"job": config.job, "pack": config.strategy.pack, "cut": config.strategy.context_parallel}
    return _result(cases, outcomes, packers, source, config.job)


class _Variant(NamedTuple):
    """A job with one of its strategies: its plans, and the seconds that one took."""

    loaded: LoadedConfig
    plans: Sequence[Plan]
    seconds: float


def _variants(loaded: LoadedConfig, own: str | None, planning: Planning, steps: int) -> dict[str, _Variant]:
    """The job first: it reads what others need, too, so that their time is that of planning."""
    known = dict(variants(loaded))
    if own is not None:
        known["declared"] = with_declared(loaded, read_declared(own))
    planning.steps(steps, lambda: None)
    result = {}
    for name, each in known.items():
        began = time.process_time()
        plans = replace(planning, loaded=each).steps(steps, lambda: None)
        result[name] = _Variant(each, plans, (time.process_time() - began) / len(plans))
    return result


def _with_length(loaded: LoadedConfig, length: int) -> LoadedConfig:
    return replace(loaded, config=loaded.config.model_copy(update={"sequence_length": length}))


def _layouts(given: Mapping[str, Any], default: Layout) -> list[Layout]:
    """All combinations of what was given, else the default's."""
    return [
        Layout(dp, cp, pp, group, given["chunks"], default.equal_counts)
        for dp, cp, pp, group in itertools.product(
            given["dp"] or (default.dp,),
            given["cp"] or (default.cp,),
            given["pp"] or (default.pp,),
            given["group_size"] or (None,),
        )
    ]


Case = tuple[Layout, int]


def _compared(
    cases: Sequence[Case],
    work: Callable[[Layout, int], Sequence[Work]],
    more: Callable[[Layout, int], Mapping[str, Declared]],
    progress: Progress,
) -> list[Outcome]:
    task = progress.add_task("simulating", total=len(cases) * len(strategies()))

    def advance() -> None:
        progress.advance(task)

    return [compare(work(*case), case[0], time.perf_counter, advance, more(*case)) for case in cases]


def _result(
    cases: Sequence[Case],
    outcomes: Sequence[Outcome],
    packers: Sequence[Mapping[str, PackRow]],
    source: Mapping[str, Any],
    name: str,
) -> Found:
    sections, found = [], []
    for (layout, length), outcome, packed in zip(cases, outcomes, packers, strict=True):
        title = f"{name} on {layout},sequence_length={length}"
        sections += [outcome_section(title, outcome), packers_section(f"packers: {title}", packed)]
        rows = {each: row.as_json() for each, row in packed.items()}
        found.append({**outcome.as_json(), "sequence_length": length, "packers": rows})
    return {"input": source, **(found[0] if len(found) == 1 else {"cases": found})}, sections
