"""`dataloader-svc quarantine export`: the quarantined samples as a file, their rows as files to repair."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

import click
import numpy as np

from dataloader_svc.cli.output import config_argument, examples, progress_bars, progress_console
from dataloader_svc.cli.quarantine import as_values, came_back, choosing, chosen, is_back, open_job_store
from dataloader_svc.cli.quarantine_rows import find_blocks
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.errors import ConfigError
from dataloader_svc.media.sniff import suffix_of
from dataloader_svc.sample import SampleId
from dataloader_svc.sources.reader import BlockSamples
from dataloader_svc.store.base import Store
from dataloader_svc.store.quarantine_log import Quarantined

COLUMNS = (
    "sample",
    "source",
    "epoch",
    "position",
    "shard",
    "row",
    "reason",
    "detail",
    "delivered",
    "step",
    "readmitted",
)


@click.command(
    name="export",
    epilog=examples(
        "dataloader-svc quarantine export mixture.yaml > bad.jsonl",
        "dataloader-svc quarantine export mixture.yaml --format csv --to bad.csv",
        "dataloader-svc quarantine export mixture.yaml --source captions --rows bad-rows",
    ),
)
@config_argument
@choosing
@click.option("--format", "kind", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@click.option(
    "--to", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: stdout]"
)
@click.option(
    "--rows",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write what each row holds into this folder.",
)
def command(
    config: Path,
    source: str | None,
    reason: tuple[str, ...],
    store: str | None,
    kind: str,
    to: Path | None,
    rows: Path | None,
) -> int:
    """Write the quarantined samples as JSON lines or CSV: name, shard, row, reason, detail.

    Those that were readmitted since are left out.
    With --rows a folder for every sample gets what the format reads of its row: `row.json`, and each
    picture or clip as a file. Exit code 1 where a row can't be read back; stderr says why.
    """
    loaded = load_config(config)
    opened = open_job_store(loaded, store)
    if opened is None:
        chosen(loaded, None, source, reason)
        _write([], kind, to)
        return 0
    with closing(opened):
        back = came_back(opened)
        found = [row for row in chosen(loaded, opened, source, reason) if not is_back(row, back)]
        _write(found, kind, to)
        lost = {} if rows is None else _write_rows(loaded, opened, found, rows)
    said = progress_console()
    for sample, why in lost.items():
        said.print(f"{sample}: row not written: {why}", markup=False, soft_wrap=True)
    return 1 if lost else 0


def _write(rows: Sequence[Quarantined], kind: str, to: Path | None) -> None:
    if to is None:
        _write_text(rows, kind, sys.stdout)
        return
    try:
        with to.open("w", encoding="utf-8", newline="") as file:
            _write_text(rows, kind, file)
    except OSError as error:
        raise ConfigError(f"--to: {to} can't be written: {error.strerror}") from None


def _write_text(rows: Sequence[Quarantined], kind: str, file: TextIO) -> None:
    values = ({"sample": str(row.sample), **as_values(row, {})} for row in rows)
    if kind == "csv":
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(values)
    else:
        file.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in values)


def _write_rows(
    loaded: LoadedConfig, store: Store, rows: Sequence[Quarantined], folder: Path
) -> Mapping[SampleId, str]:
    """A folder a sample. Returns those that can't be read, with the reason."""
    with progress_bars() as progress:
        found = find_blocks(loaded, store, rows, progress)
        bar = progress.add_task("reading rows", total=len(found.blocks))
        for block, inside in found.blocks.items():
            samples = found.reader(block).read_block(block)
            for row in inside:
                try:
                    _write_row(samples, row, folder / _name(row.sample))
                except OSError as error:
                    raise ConfigError(
                        f"--rows: {error.filename} can't be written: {error.strerror}"
                    ) from None
            progress.advance(bar)
    return found.lost


def _name(sample: SampleId) -> str:
    return f"{quote(sample.source, safe='')}-{sample.epoch}-{sample.position}"


def _write_row(samples: BlockSamples, row: Quarantined, folder: Path) -> None:
    """`row.json`: the sample and its fields by role; a medium stands there by the name of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    index = row.sample.position - samples.start
    fields: dict[str, object] = {}
    for role, values in (*samples.columns.items(), *samples.raw.items()):
        fields[role] = _plain(values[index], folder, role)
    found = samples.bad.get(index)
    now = None if found is None else {"reason": found.reason.value, "detail": found.detail}
    text = json.dumps({**as_values(row, {}), "read_now": now, "fields": fields}, ensure_ascii=False, indent=2)
    (folder / "row.json").write_text(text + "\n", encoding="utf-8")


def _plain(value: object, folder: Path, name: str) -> object:
    """`value` as JSON has it; bytes go to files in `folder`."""
    if isinstance(value, bytes):
        path = folder / f"{quote(name, safe='')}{suffix_of(value)}"
        path.write_bytes(value)
        return {"file": path.name, "bytes": len(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each, folder, f"{name}.{key}") for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each, folder, f"{name}-{number}") for number, each in enumerate(value)]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
