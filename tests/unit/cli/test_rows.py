"""A row is named where it is certain, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.progress import Progress

from dataloader_svc.cli.rows import Rows, find_rows
from dataloader_svc.config.digest import read_digest
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.planner.state import SourceState, State
from dataloader_svc.sample import SampleId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.testing.tokenizer import make_tokenizer

ROWS = 30


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    """The YAML of a job on two sources."""
    make_tokenizer(tmp_path / "tokenizer")
    for name in ("one", "two"):
        write(tmp_path / f"{name}.jsonl", ROWS)
    sources = {
        name: {
            "format": "jsonl",
            "path": f"{name}.jsonl",
            "text": "text",
            "extent": 200,
            "shuffle": {"block": 400},
        }
        for name in ("one", "two")
    }
    return {
        "job": "j",
        "seed": 3,
        "tokenizer": "tokenizer",
        "sequence_length": 64,
        "global_batch": {"sequences": 2},
        "sources": sources,
        "mixture": {"schedule": [{"step": 0, "one": 1, "two": 1}]},
    }


def write(path: Path, count: int) -> None:
    path.write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(count)))


def load(folder: Path, values: dict[str, Any]) -> LoadedConfig:
    path = folder / "mixture.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_config(path)


def planned_with(loaded: LoadedConfig) -> State:
    """A state as the planner would have left it."""
    config = loaded.config
    readers = {
        name: SourceReader(name, source, loaded.base_dir, None, config.seed)
        for name, source in config.sources.items()
    }
    sources = {name: SourceState(index=reader.index.digest) for name, reader in sorted(readers.items())}
    return State(config.seed, 5, sources, read_digest(config, loaded.base_dir))


def rows_of(loaded: LoadedConfig, state: State, *names: str) -> Rows:
    with Progress(disable=True) as progress:
        return find_rows(loaded, state, names, progress)


def test_the_rows_of_an_epoch_are_all_rows(tmp_path: Path, values: dict[str, Any]) -> None:
    loaded = load(tmp_path, values)
    rows = rows_of(loaded, planned_with(loaded), "one", "two")
    assert not rows.notes
    found = [rows.row(SampleId("one", 1, position)) for position in range(ROWS)]
    assert {row.shard for row in found if row} == {str(tmp_path / "one.jsonl")}
    assert sorted(row.row for row in found if row) == list(range(ROWS))
    assert [row.row for row in found if row] != list(range(ROWS))
    assert rows.row(SampleId("one", 0, ROWS)) is None
    assert rows.row(SampleId("three", 0, 0)) is None


def set_seed(values: dict[str, Any], folder: Path) -> None:
    values["seed"] = 4


def set_shuffle(values: dict[str, Any], folder: Path) -> None:
    values["sources"]["one"]["shuffle"] = False


def drop_source(values: dict[str, Any], folder: Path) -> None:
    del values["sources"]["one"], values["mixture"]["schedule"][0]["one"]


def add_rows(values: dict[str, Any], folder: Path) -> None:
    write(folder / "one.jsonl", ROWS + 1)


def remove_file(values: dict[str, Any], folder: Path) -> None:
    (folder / "one.jsonl").unlink()


@pytest.mark.parametrize(
    ("change", "part", "others"),
    [
        (set_seed, "seed changed", False),
        (set_shuffle, "sources.one.shuffle changed", True),
        (drop_source, "no such source", True),
        (add_rows, "its files are not those", True),
        (remove_file, "one.jsonl", True),
    ],
)
def test_no_row_where_a_name_means_another(
    tmp_path: Path,
    values: dict[str, Any],
    change: Callable[[dict[str, Any], Path], None],
    part: str,
    others: bool,
) -> None:
    state = planned_with(load(tmp_path, values))
    change(values, tmp_path)
    rows = rows_of(load(tmp_path, values), state, "one", "two")
    assert part in rows.notes["one"]
    assert rows.row(SampleId("one", 0, 0)) is None
    assert (rows.row(SampleId("two", 0, 0)) is not None) == others
