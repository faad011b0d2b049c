"""`dataloader-svc check`: is everything there, what is in it, and what is wrong: all of it, at once."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from dataloader_svc.cli.output import (
    console,
    examples,
    json_option,
    print_json,
    progress_bars,
    table,
)
from dataloader_svc.cli.preflight import Preflight, decision_of, lopsided, preflight
from dataloader_svc.cli.survey import SourceReport, steps_per_epoch, survey, tokens_per_step
from dataloader_svc.config.cross import smallest_picture
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.errors import Reason
from dataloader_svc.loader.agreement import Decision

Reports = Mapping[str, SourceReport]

_CLIENT_AHEAD = 4
"""Steps that a client reads ahead, by default two, with those that it trains on and that it reports of."""

_HEADER_THREADS = 2


@click.command(
    epilog=examples(
        "dataloader-svc check mixture.yaml",
        "dataloader-svc check mixture.yaml --rows 20000 --json",
        "dataloader-svc check mixture.yaml --deep",
        "dataloader-svc check --deep /data/new --all",
    )
)
@click.argument("config", metavar="CONFIG|FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--rows", default=2000, show_default=True, help="Rows of each source to read, at least a block."
)
@click.option("--deep", is_flag=True, help="Read every row and decode every picture and clip.")
@click.option("--all", "show_all", is_flag=True, help="Of a folder: list every bad row, not three of a kind.")
@json_option
def command(config: Path, rows: int, *, deep: bool, show_all: bool, as_json: bool) -> int:
    """Open every source, map every field, estimate tokens.

    Prints what is in each source and every problem with file, line and field. Exit code 1 when there are any.
    With --deep, nothing is left to be found out later: all that would be quarantined is counted.

    Of a FOLDER, without any configuration: --deep reads every row of every file in it and decodes every
    picture and clip. Exit code 1 when anything is bad.
    """
    if config.is_dir():
        if not deep:
            raise click.UsageError(f"{config} is a folder: with --deep, all that is in it is checked")
        return _check_folder(config, show_all=show_all, as_json=as_json)
    if show_all:
        raise click.UsageError("--all is for a folder")
    with preflight(config) as found:
        reports, wrong = _survey_all(found, None if deep else rows)
        problems = [*found.problems, *wrong]
        tokenizer = None if wrong else decision_of(found)
    if as_json:
        _print_json(found.loaded, reports, problems, tokenizer)
    else:
        _print_text(console(), found.loaded, reports, problems, tokenizer, deep=deep)
    return 1 if problems else 0


def _check_folder(folder: Path, *, show_all: bool, as_json: bool) -> int:
    # Imported here: a job's check has no use for it.
    from dataloader_svc.cli.folder import view
    from dataloader_svc.cli.folder.survey import Survey

    most = None if show_all else view.SHOWN
    with progress_bars() as bars, Survey(str(folder.absolute()), bars, most) as survey_of_all:
        report = survey_of_all.run()
    if as_json:
        print_json(view.as_json(report))
    else:
        view.print_report(console(), report)
    return 0 if view.is_good(report) else 1


def _survey_all(found: Preflight, rows: int | None) -> tuple[dict[str, SourceReport], list[str]]:
    """What is in every source that can be opened, and what is wrong, a line each. `rows`: None for all."""
    problems: list[str] = []
    reports: dict[str, SourceReport] = {}
    if found.loaded is not None:
        loaded = found.loaded.everything
        names = [name for name in loaded.config.sources if name not in found.unusable]
        threads = os.cpu_count() or 1 if rows is None else _HEADER_THREADS
        with progress_bars() as bars, ThreadPoolExecutor(threads) as pool:
            for name in names:
                reports[name], wrong = survey(loaded, name, found.rules.get(name), rows, bars, pool)
                problems += [*wrong, *_judge(loaded, reports[name])]
        problems += lopsided(loaded, {name: report.rows for name, report in reports.items()})
    return reports, problems


def _judge(loaded: LoadedConfig, report: SourceReport) -> Iterator[str]:
    """What is wrong with the rows that were read."""
    source = loaded.config.sources[report.name]
    place = ("sources", report.name)
    bad, good = report.num_bad, report.good - report.undecodable.total()
    if report.rows_read and not good and not bad:
        message = f"no row of {report.filtered} read is left: all are filtered"
        message += "".join(f"; {what}" for what in report.lacking.values())
        yield loaded.problem((*place, "transforms"), message)
    elif report.rows_read and not good:
        reason, _ = (report.bad + report.undecodable).most_common(1)[0]
        what = "no row has the mapped fields" if reason == Reason.MISSING_FIELD else "no row can be used"
        yield loaded.problem(place, f"{what}: {report.bad_example}")
    elif bad >= source.max_bad_minimum and bad > source.max_bad_fraction * (good + bad):
        yield loaded.problem(
            place,
            f"{bad} of {good + bad} rows are bad, above max_bad_fraction {source.max_bad_fraction}; "
            f"first: {report.bad_example}",
        )
    none_fits = report.media and report.media_too_long == report.media
    if none_fits and smallest_picture(loaded.config.images) <= loaded.config.sequence_length:
        yield loaded.problem(
            ("sequence_length",),
            f"{loaded.config.sequence_length} is below the tokens of every picture or clip read of "
            f"{report.name!r}, so all of it would be dropped; raise it, or lower images.max_pixels "
            "(or a clip's max_frames)",
        )
    if report.too_long and source.too_long == "error":
        message = f"{report.too_long} of {report.rows_read} rows are longer than sequence_length"
        yield loaded.problem((*place, "too_long"), f"error, and {message}: the job would stop")


def _print_json(
    loaded: LoadedConfig | None, reports: Reports, problems: list[str], tokenizer: Decision | None
) -> None:
    sources = {name: report.as_json() for name, report in reports.items()}
    if loaded is not None:
        for number, entry in enumerate(loaded.config.mixture.schedule):
            for name, (share, steps) in steps_per_epoch(loaded.config, reports, number).items():
                last = steps if math.isfinite(steps) else None
                values = {"step": entry.step, "share": share, "steps_per_epoch": last}
                sources[name].setdefault("mixture", []).append(values)
    decided = None if tokenizer is None else tokenizer._asdict()
    notes = [] if loaded is None else list(_job_notes(loaded, reports))
    found = {"sources": sources, "tokenizer": decided, "notes": notes, "problems": problems}
    print_json({"ok": not problems, **found})


def _print_text(
    out: Console,
    loaded: LoadedConfig | None,
    reports: Reports,
    problems: list[str],
    tokenizer: Decision | None,
    *,
    deep: bool,
) -> None:
    if loaded is not None and reports:
        out.print(table("", _FOUND, [_found_row(report) for report in reports.values()]))
        if any(report.lengths for report in reports.values()):
            out.print()
            out.print(_token_table(loaded, reports))
            step = f"{tokens_per_step(loaded.config, reports):,.0f} tokens"
            if loaded.config.global_batch.samples is not None:
                step = f"{loaded.config.global_batch.samples:,} samples, about {step}"
            out.print(f"\na step is {step}; tokens are estimated from the rows read", soft_wrap=True)
    if deep and any(report.num_bad for report in reports.values()):
        out.print()
        out.print(
            table("Would be quarantined", _BAD, [row for each in reports.values() for row in bad_rows(each)])
        )
    for report in reports.values():
        for note in _notes(report, deep=deep):
            out.print(f"note: {report.name}: {note}", markup=False, soft_wrap=True)
    for note in () if loaded is None else _job_notes(loaded, reports):
        out.print(f"note: {note}", markup=False, soft_wrap=True)
    if tokenizer is not None:
        out.print(f"\ntokenizer: {tokenizer.library}: {tokenizer.why}", markup=False)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    out.print(f"\n{count}:" if problems else "\nno problems")
    for line in problems:
        out.print(line, markup=False, soft_wrap=True)


_FOUND = ("source", "format", ">shards", ">rows", ">read", ">fine", ">filtered", ">bad", ">media")
_BAD = ("source", "reason", ">rows", "found when", "first of them")


def _found_row(report: SourceReport) -> list[str]:
    fine = report.good - report.undecodable.total()
    rows = (report.shards, report.rows, report.rows_read, fine, report.filtered, report.num_bad, report.media)
    return [report.name, report.format, *(f"{count:,}" for count in rows)]


def bad_rows(report: SourceReport) -> Iterator[tuple[str, ...]]:
    """A line of a table for each reason: what, how many, found when, and the first places."""
    for (when, reason), first in report.first.items():
        count = (report.bad if when == "read" else report.undecodable)[reason]
        places = "\n".join(f"{bad.row}: {bad.detail}" for bad in first)
        yield report.name, reason, f"{count:,}", when, places


def _token_table(loaded: LoadedConfig, reports: Reports) -> Table:
    """Tokens of a row and of an epoch, and how long an epoch lasts with the first and the last weights."""
    schedule = loaded.config.mixture.schedule
    entries = sorted({0, len(schedule) - 1})
    columns = ["tokens of\nsource", ">a row:\np50", ">\np99", ">\nmax", ">an\nepoch"]
    for number in entries:
        columns += [f">step {schedule[number].step}:\nshare", ">steps/\nepoch"]
    lasts = [steps_per_epoch(loaded.config, reports, number) for number in entries]
    rows = []
    for name, report in reports.items():
        tokens = report.quantiles()
        row = [
            name,
            *(f"{tokens[key]:,.0f}" for key in ("p50", "p99", "max")),
            short(report.tokens_per_epoch),
        ]
        for shares in lasts:
            share, steps = shares[name]
            row += [f"{share:.1%}", short(steps) if math.isfinite(steps) else "-"]
        rows.append(row)
    return table("", columns, rows)


def short(number: float) -> str:
    """Three digits and a unit: 0.5, 45.4, 3.27M. For estimates."""
    power = min(3, max(0, int(math.log10(max(number, 1)) + 0.0002) // 3))  # 999.6 rounds to 1.00k
    value = number / 1000**power
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 or not power else 2
    return f"{value:.{digits}f}{' kMG'[power].strip()}"


def _job_notes(loaded: LoadedConfig, reports: Reports) -> Iterator[str]:
    """What concerns several sources together."""
    sizes = {name: report.expanded_bytes for name, report in reports.items() if report.expanded_bytes}
    total, most = sum(sizes.values()), loaded.config.storage.scratch_bytes
    if total > most:
        each = ", ".join(f"{name} {_gib(size)}" for name, size in sizes.items())
        yield (
            f"storage: what is compressed expands to {_gib(total)} ({each}), and scratch_bytes is "
            f"{_gib(most)}: files will be expanded again and again while they are read; raise it, or store "
            "them uncompressed or as parquet"
        )
    adaptive, ahead = loaded.config.mixture.adaptive, loaded.config.planner.ahead + _CLIENT_AHEAD
    if adaptive is not None and adaptive.lead < 2 * ahead:
        yield (
            f"mixture.adaptive: lead is {adaptive.lead}, and plans are made some {ahead} steps ahead "
            f"(planner.ahead {loaded.config.planner.ahead}, and what clients read ahead): what a period "
            f"decides will hold from whatever step is not planned then, not always the same; {2 * ahead} is "
            "enough"
        )
    loader = loaded.config.loader
    total, most = sum(report.block_bytes for report in reports.values()), loader.memory * loader.count
    if total > most:
        yield (
            f"loader: a block of each of {len(reports)} sources takes {_gib(total)} together, and "
            f"loader.memory times loader.count is {_gib(most)}: blocks will be read again at each step, "
            "many times slower; raise one of them, or divide shuffle.block of the sources by "
            f"{math.ceil(total / most)}"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _notes(report: SourceReport, *, deep: bool) -> Iterator[str]:
    yield from report.warnings
    yield from (f"transforms: null in all rows: {what}" for what in report.lacking.values())
    if report.bad and not deep:
        counts = ", ".join(f"{count} {reason}" for reason, count in report.bad.most_common())
        yield f"will be quarantined: {counts}; first: {report.bad_example}"
    if report.media_too_long:
        yield f"{report.media_too_long} of {report.media} media exceed a sequence and will be dropped"
