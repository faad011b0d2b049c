"""`dataloader-svc check`: is everything there, what is in it, and what is wrong: all of it, at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.progress import Progress

from dataloader_svc.cli.output import (
    config_argument,
    console,
    examples,
    json_option,
    print_json,
    progress_console,
    table,
)
from dataloader_svc.cli.preflight import problems_of
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.errors import ConfigProblems, DataloaderError, Reason
from dataloader_svc.loader.read import HeldBlock, read_block
from dataloader_svc.loader.rules import sample_rule
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.transforms.text import Tokenizer


@dataclass(slots=True)
class SourceReport:
    """What was found in one source; the token figures are of its first blocks, the estimate of all."""

    name: str
    format: str
    shards: int = 0
    rows: int = 0
    rows_read: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    bad_example: str = ""
    lengths: list[int] = field(default_factory=list)
    media: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def mean_tokens(self) -> float:
        """Over the good rows read."""
        return float(np.mean(self.lengths)) if self.lengths else 0.0

    @property
    def tokens_per_epoch(self) -> int:
        """Estimate: good share of the rows read, times their mean length, times all rows."""
        return round(self.rows * self.mean_tokens * len(self.lengths) / max(1, self.rows_read))

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        quantiles = np.percentile(self.lengths, [50, 90, 99, 100]).tolist() if self.lengths else [0] * 4
        return {
            "format": self.format,
            "shards": self.shards,
            "rows": self.rows,
            "rows_read": self.rows_read,
            "bad": dict(self.bad),
            "tokens_per_epoch": self.tokens_per_epoch,
            "tokens": {
                "mean": self.mean_tokens,
                **dict(zip(("p50", "p90", "p99", "max"), quantiles, strict=True)),
            },
            "media": self.media,
            "warnings": self.warnings,
        }


@click.command(
    epilog=examples(
        "dataloader-svc check mixture.yaml", "dataloader-svc check mixture.yaml --rows 20000 --json"
    )
)
@config_argument
@click.option(
    "--rows", default=2000, show_default=True, help="Rows of each source to read, at least a block."
)
@json_option
def command(config: Path, rows: int, *, as_json: bool) -> int:
    """Open every source, map every field, estimate tokens.

    Prints what is in each source and every problem with file, line and field. Exit code 1 when there are any.
    """
    try:
        loaded = load_config(config)
    except ConfigProblems as error:
        return _finish([], error.problems, as_json=as_json)
    problems = list(problems_of(loaded))
    reports = []
    with Progress(console=progress_console(), transient=True) as progress, ThreadPoolExecutor(2) as pool:
        for name in loaded.config.sources:
            report, found = check_source(loaded, name, rows, progress, pool)
            reports.append(report)
            known = "\n".join(problems)
            problems += [line for line in found if line not in known]
    return _finish(reports, problems, as_json=as_json, loaded=loaded)


def check_source(
    loaded: LoadedConfig, name: str, rows: int, progress: Progress, pool: Executor
) -> tuple[SourceReport, list[str]]:
    """Index a source, read `rows` rows of it and say what is wrong, a line each."""
    source = loaded.config.sources[name]
    report = SourceReport(name, source.format)
    problems: list[str] = []
    bar = progress.add_task(f"indexing {name}", total=None)
    try:
        reader = SourceReader(
            name,
            source,
            loaded.base_dir,
            loaded.base_dir / loaded.config.index_cache,
            loaded.config.seed,
            lambda done, total: progress.update(bar, completed=done, total=total),
        )
        report.shards, report.rows = len(reader.index.paths), reader.num_rows
        report.warnings += reader.index.warnings
        for shard in reader.index.bad_shards:
            problems.append(loaded.problem(("sources", name, "path"), f"{shard.path}: {shard.reason}"))
        for held in _blocks(loaded, reader, rows, pool):
            _count(report, held)
            progress.update(
                bar, description=f"reading {name}", completed=report.rows_read, total=min(rows, report.rows)
            )
    except DataloaderError as error:
        problems.append(loaded.problem(("sources", name), str(error)))
    finally:
        progress.remove_task(bar)
    problems += _judge(loaded, report)
    return report, problems


def _blocks(loaded: LoadedConfig, reader: SourceReader, rows: int, pool: Executor) -> Iterator[HeldBlock]:
    config = loaded.config
    tokenizer = Tokenizer.load(loaded.base_dir / config.tokenizer, config.tokenizer_backend)
    rule = sample_rule(config, reader.name, loaded.base_dir, tokenizer)
    seen = 0
    for block in range(reader.order(0).num_blocks):
        held = read_block(reader, BlockId(reader.name, 0, block), rule, pool)
        yield held
        seen += len(held.id_offsets) - 1
        if seen >= rows:
            return


def _count(report: SourceReport, held: HeldBlock) -> None:
    lengths = np.diff(held.id_offsets)
    report.rows_read += len(lengths)
    report.lengths += lengths[lengths > 0].tolist()
    report.media += len(held.media.kind)
    for row in held.bad:
        report.bad[row.reason] += 1
        report.bad_example = report.bad_example or f"{row.row}: {row.reason}: {row.detail}"


def _judge(loaded: LoadedConfig, report: SourceReport) -> Iterator[str]:
    source = loaded.config.sources[report.name]
    bad = sum(report.bad.values())
    if report.rows_read and bad == report.rows_read:
        reason, _ = report.bad.most_common(1)[0]
        place: tuple[str, ...] = ("sources", report.name)
        what = "no row has the mapped fields" if reason == Reason.MISSING_FIELD else "no row can be used"
        yield loaded.problem(place, f"{what}: {report.bad_example}")
    elif bad >= source.max_bad_minimum and bad > source.max_bad_fraction * report.rows_read:
        yield loaded.problem(
            ("sources", report.name),
            f"{bad} of {report.rows_read} rows are bad, above max_bad_fraction {source.max_bad_fraction}; "
            f"first: {report.bad_example}",
        )


def _finish(
    reports: list[SourceReport], problems: list[str], *, as_json: bool, loaded: LoadedConfig | None = None
) -> int:
    if as_json:
        print_json(
            {"ok": not problems, "sources": {r.name: r.as_json() for r in reports}, "problems": problems}
        )
        return 1 if problems else 0
    out = console()
    if reports:
        out.print(table("", _COLUMNS, [_row(report) for report in reports]))
    if loaded is not None and reports:
        per_step = loaded.config.num_sequences * loaded.config.sequence_length
        total = sum(report.tokens_per_epoch for report in reports)
        out.print(
            f"\na step is {per_step:,} tokens; one epoch of all sources about {total / per_step:,.0f} steps"
        )
    for report in reports:
        for warning in report.warnings:
            out.print(f"note: {report.name}: {warning}", markup=False)
        if report.bad:
            counts = ", ".join(f"{count} {reason}" for reason, count in report.bad.most_common())
            out.print(
                f"note: {report.name}: will be quarantined: {counts}; first: {report.bad_example}",
                markup=False,
            )
    out.print(f"\n{len(problems)} problems" if problems else "\nno problems")
    for line in problems:
        out.print(line, markup=False, soft_wrap=True)
    return 1 if problems else 0


_COLUMNS = (
    *("source", "format", ">shards", ">rows", ">read", ">bad", ">media"),
    *(">tokens p50", ">p99", ">max", ">tokens/epoch"),
)


def _row(report: SourceReport) -> list[str]:
    shown = report.as_json()
    tokens = shown["tokens"]
    return [
        report.name,
        report.format,
        f"{report.shards:,}",
        f"{report.rows:,}",
        f"{report.rows_read:,}",
        f"{sum(report.bad.values()):,}",
        f"{report.media:,}",
        *(f"{tokens[key]:,.0f}" for key in ("p50", "p99", "max")),
        f"{report.tokens_per_epoch:,}",
    ]
