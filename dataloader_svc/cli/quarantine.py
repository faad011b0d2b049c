"""`dataloader-svc quarantine`: the samples that a job could not use, and why, for people to repair.

Without a further word it lists; `export` (`quarantine_export.py`) hands over what a repair needs, `readmit`
(`quarantine_readmit.py`) has what was repaired delivered.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import click

from dataloader_svc.cli.output import config_argument, console, examples, json_option, print_json, table
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.errors import ConfigError, Reason
from dataloader_svc.planner.history import lineage
from dataloader_svc.registry import nearest
from dataloader_svc.sample import SampleId
from dataloader_svc.store.base import Store
from dataloader_svc.store.open import open_existing
from dataloader_svc.store.quarantine_log import Quarantined, quarantine, readmitted

F = TypeVar("F", bound=Callable[..., Any])

ACTIONS = {
    "list": "The samples, with counts by source and reason (the default).",
    "export": "The same as JSON lines or CSV, and what the rows hold, for a repair.",
    "readmit": "Have samples delivered whose data was repaired.",
}


class _ListsByDefault(click.Group):
    """`quarantine job.yaml` is `quarantine list job.yaml`. Actions are imported when they are used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*ACTIONS, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(ACTIONS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name == "list":
            return list_command
        if cmd_name not in ACTIONS:
            return None
        action: click.Command = importlib.import_module(f"dataloader_svc.cli.quarantine_{cmd_name}").command
        return action

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Actions"):
            formatter.write_dl(list(ACTIONS.items()))


@click.group(
    cls=_ListsByDefault,
    epilog=examples(
        "dataloader-svc quarantine mixture.yaml",
        "dataloader-svc quarantine mixture.yaml --source captions --reason truncated --json",
        "dataloader-svc quarantine export mixture.yaml --format csv --to bad.csv",
        "dataloader-svc quarantine readmit mixture.yaml --source captions",
    ),
)
def command() -> None:
    """The samples that a job has skipped, or delivered without loss: source, shard, row, reason."""


def choosing(function: F) -> F:
    """The options that say which samples are meant, and in which store."""
    for option in (
        click.option("--store", help="State store to read, instead of the configured one."),
        click.option("--reason", multiple=True, help="Only this reason; may be given more than once."),
        click.option("--source", help="Only this source."),
    ):
        function = option(function)
    return function


def open_job_store(loaded: LoadedConfig, store: str | None) -> Store | None:
    """The job's store, or that of `--store`; None where there is none yet."""
    spec = job_spec(loaded, loaded.base_dir, "127.0.0.1:0", store)
    return open_existing(spec.store, spec.base_dir)


def chosen(
    loaded: LoadedConfig, store: Store | None, source: str | None, reasons: Iterable[str]
) -> list[Quarantined]:
    """The quarantined samples that are meant. ConfigError for a source or reason that doesn't exist."""
    if source is not None and source not in loaded.config.sources:
        known = sorted(loaded.config.sources)
        raise ConfigError(
            f"no source is called {source!r}; sources: {', '.join(known)}{nearest(source, known)}"
        )
    wanted = set(reasons)
    known = sorted(each.value for each in Reason if each != Reason.FILTERED)
    for reason in sorted(wanted - set(known)):
        raise ConfigError(
            f"no reason is called {reason!r}; reasons: {', '.join(known)}{nearest(reason, known)}"
        )
    rows = [] if store is None else quarantine(store, source)
    return [row for row in rows if not wanted or row.reason in wanted]


def came_back(store: Store) -> dict[SampleId, int]:
    """Samples that a step of the current history has readmitted -> that step."""
    stops = {part.generation.number: part.stop for part in lineage(store)}
    return {
        sample: step
        for sample, (generation, step) in readmitted(store).items()
        if step < stops.get(generation, 0)
    }


def is_back(row: Quarantined, back: Mapping[SampleId, int]) -> bool:
    """Whether it was readmitted, and not found bad again since."""
    step = back.get(row.sample)
    return step is not None and (row.step is None or row.step < step)


def as_values(row: Quarantined, back: Mapping[SampleId, int]) -> dict[str, object]:
    """One sample for JSON and CSV. back: what `came_back` gives."""
    return {
        "source": row.sample.source,
        "epoch": row.sample.epoch,
        "position": row.sample.position,
        "shard": row.row.shard,
        "row": row.row.row,
        "reason": row.reason,
        "detail": row.detail,
        "delivered": row.delivered,
        "step": row.step,
        "readmitted": back[row.sample] if is_back(row, back) else None,
    }


@click.command(name="list")
@config_argument
@choosing
@click.option("--limit", default=50, show_default=True, help="Rows to print; --json prints all.")
@json_option
def list_command(
    config: Path, source: str | None, reason: tuple[str, ...], store: str | None, limit: int, *, as_json: bool
) -> None:
    """List the samples that a job could not use, and count them by source and reason."""
    loaded = load_config(config)
    opened = open_job_store(loaded, store)
    if opened is None:
        rows, back = chosen(loaded, None, source, reason), {}
    else:
        with closing(opened):
            rows, back = chosen(loaded, opened, source, reason), came_back(opened)
    if as_json:
        print_json([as_values(row, back) for row in rows])
        return
    out = console()
    if not rows:
        out.print("nothing is in quarantine")
        return
    shown = [(row.sample, row.row, row.reason, _was(row, back), row.detail) for row in rows[:limit]]
    out.print(table("", ("sample", "row", "reason", "was", "detail"), shown))
    counts = Counter((row.sample.source, row.reason) for row in rows)
    returned = sum(is_back(row, back) for row in rows)
    out.print(
        f"\n{len(rows)} samples"
        + (f", {returned} of them readmitted since" if returned else "")
        + (f", {limit} shown" if len(rows) > limit else "")
    )
    for (name, found), count in counts.most_common():
        out.print(f"  {count:6} {name}: {found}", markup=False)


def _was(row: Quarantined, back: Mapping[SampleId, int]) -> str:
    was = "without loss" if row.delivered else "skipped"
    return f"{was}; readmitted in step {back[row.sample]}" if is_back(row, back) else was
