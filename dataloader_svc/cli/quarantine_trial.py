"""Quarantined samples tried again, as files and configuration are now: read, tokenized, decoded.

By the very readers and rules that a loader uses; so what passes here fails in the job only where something
changes in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing

from rich.progress import Progress

from dataloader_svc.cli.quarantine_rows import Found
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.errors import Reason
from dataloader_svc.loader.read import HeldBlock, probe_columns, read_block
from dataloader_svc.loader.rules import SampleRule, decode_workers, sample_rule
from dataloader_svc.loader.undecodable import undecodable
from dataloader_svc.planner.pieces import TooLongError, cut
from dataloader_svc.planner.rules import room, too_long
from dataloader_svc.sample import SampleId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.store.quarantine_log import Quarantined
from dataloader_svc.transforms.tokenizers import Tokenizer


def try_samples(loaded: LoadedConfig, found: Found, progress: Progress) -> dict[SampleId, str]:
    """Those of the samples that are still bad, with the reason."""
    config = loaded.config
    bad: dict[SampleId, str] = {}
    if not found.blocks:
        return bad
    tokenizer = Tokenizer.of(config, loaded.base_dir)
    bar = progress.add_task("trying samples", total=len(found.blocks))
    with (
        closing(decode_workers(config)) as workers,
        ThreadPoolExecutor(config.loader.threads, "readmit") as pool,
    ):
        rules = {
            name: sample_rule(config, name, loaded.base_dir, tokenizer, workers)
            for name in {block.source for block in found.blocks}
        }
        for block, rows in found.blocks.items():
            reader, rule = found.reader(block), rules[block.source]
            held = read_block(reader, block, rule, pool)
            for sample, why in _bad(loaded, held, reader, rule, rows, pool):
                bad.setdefault(sample, why)
            progress.advance(bar)
    return bad


def _bad(
    loaded: LoadedConfig,
    held: HeldBlock,
    reader: SourceReader,
    rule: SampleRule,
    rows: Sequence[Quarantined],
    pool: Executor,
) -> Iterator[tuple[SampleId, str]]:
    """Of the samples `rows` of a block: what the planner would pass over, and what can't be decoded."""
    by_position = {row.sample.position: row.sample for row in rows}
    most, cutting = room(loaded.config), too_long(loaded.config.sources[reader.name])
    probe = probe_columns(held)
    try:
        skipped = cut(probe, cutting, most).skipped
    except TooLongError:  # of one of the block; those that are meant are found below
        skipped = cut(probe, "drop", most).skipped
    for row in skipped:
        if row.position in by_position:
            left_out = row.reason == Reason.FILTERED
            why = "a transform of the source leaves it out now" if left_out else f"{row.reason}: {row.detail}"
            yield by_position[row.position], why
    for bad in undecodable(held, reader, rule, pool, positions=by_position):
        yield by_position[bad.position], f"{bad.reason}: {bad.detail}"
