"""What is in a source: its shards and rows, and the tokens, media and bad rows of some of its blocks, or all.

Reads as the loaders do, in the order of epoch 0, so that what it says is what a job would meet. A deep survey
reads every block and decodes every medium; a block at a time is in memory. `check` prints and judges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from rich.progress import Progress

from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import DataloaderError, Reason
from dataloader_svc.loader.read import HeldBlock, read_block
from dataloader_svc.loader.rules import SampleRule
from dataloader_svc.loader.undecodable import undecodable
from dataloader_svc.sample import BadRow, BlockId
from dataloader_svc.sources.index import BadShard, SourceIndex
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.storage import Storage

FoundWhen = Literal["read", "decoded"]
"""When a bad row is found out: by its text and the headers of its media, or by their pixels."""

_EXAMPLES = 3  # of each reason
QUANTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


@dataclass(slots=True)
class SourceReport:
    """What was found in one source; the token figures are of the rows read, the estimate of all.

    lengths      tokens of a row -> good rows read that have so many
    bad          reason -> rows that are passed over; `undecodable`: that keep their place, without loss
    first        (when, reason) -> where the first of them lie, and what was found
    bad_shards   shards that give no row at all, and why
    filtered     rows that the source's transforms leave out
    lacking      fields that those look at and no row has -> what there is
    too_long     rows longer than a sequence; `media_too_long`: with a single medium that is
    expanded_bytes   of the plain copies of its compressed shards
    block_bytes  of the largest block read, as a loader holds it
    """

    name: str
    format: str
    shards: int = 0
    rows: int = 0
    rows_read: int = 0
    filtered: int = 0
    lacking: dict[str, str] = field(default_factory=dict)
    bad: Counter[str] = field(default_factory=Counter)
    undecodable: Counter[str] = field(default_factory=Counter)
    first: dict[tuple[FoundWhen, str], list[BadRow]] = field(default_factory=dict)
    bad_shards: tuple[BadShard, ...] = ()
    lengths: Counter[int] = field(default_factory=Counter)
    too_long: int = 0
    media: int = 0
    media_too_long: int = 0
    warnings: list[str] = field(default_factory=list)
    expanded_bytes: int = 0
    block_bytes: int = 0

    @property
    def good(self) -> int:
        """Rows read that are delivered; of them, `undecodable` ones without loss."""
        return self.lengths.total()

    @property
    def num_bad(self) -> int:
        """Rows read that are quarantined, whenever it is found out."""
        return self.bad.total() + self.undecodable.total()

    @property
    def bad_example(self) -> str:
        """The first bad row read, with its reason; "" where there is none."""
        return next(
            (f"{row.row}: {row.reason}: {row.detail}" for rows in self.first.values() for row in rows), ""
        )

    @property
    def mean_tokens(self) -> float:
        """Over the good rows read."""
        return sum(length * count for length, count in self.lengths.items()) / max(1, self.good)

    @property
    def tokens_per_epoch(self) -> int:
        """Estimate: good share of the rows read, times their mean length, times all rows."""
        return round(self.rows * self.mean_tokens * self.good / max(1, self.rows_read))

    def quantiles(self) -> dict[str, float]:
        """Tokens of a row, by the names of QUANTILES; zeros where none was read."""
        if not self.lengths:
            return dict.fromkeys(QUANTILES, 0.0)
        values = np.array(sorted(self.lengths), np.float64)
        ends = np.cumsum([self.lengths[int(value)] for value in values])
        found = {}
        for (
            name,
            percent,
        ) in QUANTILES.items():  # as np.percentile has it: between the two rows that are nearest
            rank = percent / 100 * (self.good - 1)
            low, high = values[np.searchsorted(ends, [np.floor(rank), np.ceil(rank)], "right")]
            found[name] = float(low + (high - low) * (rank % 1))
        return found

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "format": self.format,
            "shards": self.shards,
            "rows": self.rows,
            "rows_read": self.rows_read,
            "filtered": self.filtered,
            "fine": self.good - self.undecodable.total(),
            "bad": dict(self.bad),
            "undecodable": dict(self.undecodable),
            "first": [
                {
                    "reason": reason,
                    "when": when,
                    "shard": bad.row.shard,
                    "row": bad.row.row,
                    "detail": bad.detail,
                }
                for (when, reason), rows in self.first.items()
                for bad in rows
            ],
            "bad_shards": [shard._asdict() for shard in self.bad_shards],
            "tokens_per_epoch": self.tokens_per_epoch,
            "tokens": {"mean": self.mean_tokens, **self.quantiles()},
            "too_long": self.too_long,
            "media": self.media,
            "media_too_long": self.media_too_long,
            "warnings": self.warnings,
            "expanded_bytes": self.expanded_bytes,
            "block_bytes": self.block_bytes,
        }


def survey(
    loaded: LoadedConfig,
    name: str,
    rule: SampleRule | None,
    rows: int | None,
    progress: Progress,
    pool: Executor,
) -> tuple[SourceReport, list[str]]:
    """Index a source, read about `rows` rows of it, and say what is wrong with its files, a line each.

    rule   None: its samples can't be made, so that only the index is looked at
    rows   None: all of them, with every medium decoded in `pool`
    """
    source = loaded.config.sources[name]
    report = SourceReport(name, source.format)
    problems: list[str] = []
    bar = progress.add_task(f"indexing {name}", total=None)
    storage = Storage.of(loaded.config, loaded.base_dir)
    try:
        reader = SourceReader(
            name,
            source,
            loaded.base_dir,
            loaded.base_dir / loaded.config.index_cache,
            loaded.config.seed,
            lambda done, total: progress.update(bar, completed=done, total=total),
            storage=storage,
        )
        report.shards, report.rows = len(reader.index.paths), reader.num_rows
        report.bad_shards = reader.index.bad_shards
        unusable = [shard.reason for shard in report.bad_shards]
        problems += [loaded.problem(("sources", name, "path"), reason) for reason in unusable]
        report.warnings += [text for text in reader.index.warnings if not text.startswith("unusable shard")]
        report.lacking = reader.lacking()
        report.expanded_bytes = _expanded_bytes(reader.index, storage)
        wanted = report.rows if rows is None else min(rows, report.rows)
        for held in _blocks(reader, rule, wanted, pool) if rule is not None else ():
            _count(report, held, loaded.config.sequence_length)
            if rows is None and rule is not None:
                for row in undecodable(held, reader, rule, pool):
                    _add_bad(report, "decoded", row)
            progress.update(bar, description=f"reading {name}", completed=report.rows_read, total=wanted)
    except DataloaderError as error:
        problems.append(loaded.problem(("sources", name), str(error)))
    finally:
        progress.remove_task(bar)
    return report, problems


def _expanded_bytes(index: SourceIndex, storage: Storage) -> int:
    """Of the shards that are compressed: where extents lie behind the end of a file, it may be one."""
    ends = np.zeros(len(index.paths), np.int64)
    np.maximum.at(ends, index.extents.shard, index.extents.offset + index.extents.length)
    larger = np.flatnonzero(ends > index.sizes).tolist()
    return sum(int(ends[shard]) for shard in larger if storage.is_compressed(index.paths[shard]))


def _blocks(reader: SourceReader, rule: SampleRule, rows: int, pool: Executor) -> Iterator[HeldBlock]:
    seen = 0
    for block in range(reader.order(0).num_blocks):
        held = read_block(reader, BlockId(reader.name, 0, block), rule, pool)
        yield held
        seen += len(held.id_offsets) - 1
        if seen >= rows:
            return


def _count(report: SourceReport, held: HeldBlock, sequence_length: int) -> None:
    lengths = np.diff(held.id_offsets)
    report.rows_read += len(lengths)
    report.block_bytes = max(report.block_bytes, held.num_bytes)
    report.lengths.update(lengths[lengths > 0].tolist())
    report.too_long += int((lengths > sequence_length).sum())
    report.media += len(held.media.kind)
    report.media_too_long += int((held.media.tokens > sequence_length).sum())
    for row in held.bad:
        if row.reason == Reason.FILTERED:
            report.filtered += 1
        else:
            _add_bad(report, "read", row)


def _add_bad(report: SourceReport, when: FoundWhen, row: BadRow) -> None:
    (report.bad if when == "read" else report.undecodable)[row.reason] += 1
    first = report.first.setdefault((when, row.reason), [])
    if len(first) < _EXAMPLES:
        first.append(row)


def tokens_per_step(config: Config, reports: Mapping[str, SourceReport], entry: int = 0) -> float:
    """Of a full step at entry number `entry` of the schedule. An estimate where a step is so many samples."""
    samples = config.global_batch.samples
    if samples is None:
        return (config.num_sequences or 0) * config.sequence_length
    share = _shares(config, reports, entry)
    means = {name: report.mean_tokens for name, report in reports.items()}
    if config.mixture.unit == "samples":
        return samples * sum(share[name] * mean for name, mean in means.items())
    a_token = sum(share[name] / mean for name, mean in means.items() if mean)  # samples of a token drawn
    return samples / a_token if a_token else 0.0


def _shares(config: Config, reports: Mapping[str, SourceReport], entry: int) -> dict[str, float]:
    """By source, in the mixture's unit."""
    weights = config.mixture.schedule[entry].weights
    total = sum(weights.values())
    return {name: weights.get(name, 0.0) / total for name in reports}


def steps_per_epoch(
    config: Config, reports: Mapping[str, SourceReport], entry: int
) -> dict[str, tuple[float, float]]:
    """Of each source at entry number `entry` of the schedule: its share, and the steps of an epoch of it.

    Estimates, with full sequences. `inf` steps for one that has no weight, or whose tokens are unknown.
    """
    share = tokens = _shares(config, reports, entry)
    if config.mixture.unit == "samples":
        drawn = {name: share[name] * report.mean_tokens for name, report in reports.items()}
        mean = sum(drawn.values()) or 1.0
        tokens = {name: value / mean for name, value in drawn.items()}
    per_step = tokens_per_step(config, reports, entry)
    return {
        name: (
            share[name],
            report.tokens_per_epoch / (per_step * tokens[name])
            if tokens[name] and report.tokens_per_epoch and per_step
            else float("inf"),
        )
        for name, report in reports.items()
    }
