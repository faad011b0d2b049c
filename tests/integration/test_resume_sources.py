"""Sources that change while a job lives: another name, fewer or more of them, more shards.

What ranks got is turned back into the numbers of the rows: a lost, repeated or moved row shows as one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dataloader_client import DataServiceLoader
from dataloader_client.errors import StateMismatchError
from dataloader_svc.testing.tokenizer import make_tokenizer
from dataloader_svc.transforms.tokenizers import Tokenizer
from reading import take_step
from real_job import run_cli, serve, write_config

Row = tuple[str, int, int, int]
"""(source, epoch, position, number of the row in the data)."""


def write_shard(folder: Path, name: str, numbers: Iterable[int]) -> None:
    """One line a number."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"text": f"row {number} of many"}) for number in numbers]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def job(folder: Path, *names: str, **changes: Any) -> dict[str, Any]:
    """Sources `names` on the folders of the same names; each step has four sequences of three rows or so."""
    make_tokenizer(folder / "tokenizer")
    return {
        "job": "changing",
        "seed": 11,
        "tokenizer": str(folder / "tokenizer"),
        "sequence_length": 32,
        "global_batch": {"sequences": 4},
        "sources": {name: source(folder / name) for name in names},
        "mixture": {"schedule": [{"step": 0, **dict.fromkeys(names, 1)}]},
        "index_cache": str(folder / "index"),
    } | changes


def source(folder: Path, **changes: Any) -> dict[str, Any]:
    small = {"shuffle": {"block": 512}, "extent": 256}
    return {"format": "jsonl", "path": f"{folder}/*.jsonl", "text": "text", **small} | changes


class Rows:
    """Rows as a trainer receives them."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.load(folder / "tokenizer", "tokenizers")

    def steps(self, loader: DataServiceLoader, count: int) -> list[Row]:
        """What the next `count` steps hold."""
        return [row for _ in range(count) for row in self.step(loader)]

    def step(self, loader: DataServiceLoader) -> list[Row]:
        found = []
        for batch in take_step(loader):
            ids = batch.numpy["input_ids"]
            for span in batch.manifest.spans():
                assert span.start == 0
                text = self._tokenizer.decode(ids[span.offset : span.offset + span.length])
                number = re.match(r"row (\d+) of many", text)
                assert number is not None, text
                found.append((span.source, span.epoch, span.position, int(number[1])))
        return found


def state_of(loader: DataServiceLoader) -> dict[str, Any]:
    """As it comes out of a checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return found


def assert_once(found: list[Row], state: dict[str, Any], sizes: dict[str, int]) -> None:
    """Every position before the place of its source is in `found` once, or waits; no other is."""
    came = Counter(row[:3] for row in found)
    came.update((name, epoch, position) for name, epoch, position, *_ in state["service"]["waiting"])
    for name, rows in sizes.items():
        at = state["service"]["sources"][name]
        drawn = Counter((name, epoch, p) for epoch in range(at["epoch"]) for p in range(rows))
        drawn.update((name, at["epoch"], p) for p in range(at["position"]))
        assert drawn == Counter({place: count for place, count in came.items() if place[0] == name})


def test_another_name_changes_nothing_else(tmp_path: Path) -> None:
    """`was:` keeps order, place and accounts, on to a third name; left out again, it is asked for."""
    for number, name in enumerate(("web", "books")):
        write_shard(tmp_path / name, "a", range(100 * number, 100 * number + 90))
    config = write_config(tmp_path / "job.yaml", job(tmp_path, "web", "books"))
    rows = Rows(tmp_path)
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        first = rows.steps(loader, 5)
        state = state_of(loader)
        rest = rows.steps(loader, 14)
        end = state_of(loader)
    reference = first + rest
    assert {epoch for _, epoch, _, _ in reference} == {0, 1}
    means = {row[:3]: row[3] for row in reference}

    found = list(first)
    for name in ("notes", "aaa"):  # sorted after and before the other source
        values = job(tmp_path, "books")
        values["sources"][name] = source(tmp_path / "web", was="web")
        values["mixture"]["schedule"] = [{"step": 0, "books": 1, name: 1}]
        write_config(config, values)
        with serve(config) as served, DataServiceLoader(served.address, state=state) as loader:
            assert loader.state_dict()["service"]["sources"][name]["position"] > 0
            part = rows.steps(loader, 7)
            state = state_of(loader)
        found += [("web" if row[0] == name else row[0], *row[1:]) for row in part]
        explained = run_cli("explain", config, "--step", state["step"] - 1, "--json")
        assert explained.returncode == 0, explained.stderr
        assert "rows unknown" not in explained.stdout
    assert all(means.get(row[:3], row[3]) == row[3] for row in found)
    by_old_name = json.loads(json.dumps(state).replace('"aaa"', '"web"'))
    assert_once(found, by_old_name, {"web": 90, "books": 90})
    now, then = by_old_name["service"]["sources"]["web"], end["service"]["sources"]["web"]
    assert (now["epoch"], now["index"]) == (then["epoch"], then["index"])
    assert abs(now["samples"] - then["samples"]) <= 1  # of two that are owed the same, the name decides

    del values["sources"]["aaa"]["was"]
    write_config(config, values)
    with serve(config) as served, pytest.raises(StateMismatchError, match=r"sources\.aaa\.was differs"):
        DataServiceLoader(served.address, state=state)


def test_sources_come_and_go(tmp_path: Path) -> None:
    """On another mesh and batch each time: what stays goes on where it was, and what is new begins."""
    for number, name in enumerate(("web", "books", "code")):
        write_shard(tmp_path / name, "a", range(100 * number, 100 * number + 90))
    config = write_config(tmp_path / "job.yaml", job(tmp_path, "web", "books"))
    rows = Rows(tmp_path)
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        found = rows.steps(loader, 4)
        state = state_of(loader)
    changes = {"global_batch": {"sequences": 6}, "loader": {"count": 1}}
    write_config(config, job(tmp_path, "code", "web", **changes))
    with serve(config) as served, DataServiceLoader(served.address, state=state) as loader:
        found += rows.steps(loader, 4)
        state = state_of(loader)
    assert set(state["service"]["sources"]) == {"code", "web"}
    assert_once(found, state, {"web": 90, "code": 90})
    write_config(config, job(tmp_path, "books", "code", "web", loader={"count": 3}))
    with serve(config) as served, DataServiceLoader(served.address, state=state) as loader:
        later = rows.steps(loader, 4)
        state = state_of(loader)
    assert_once(found + later, state, {"web": 90, "code": 90})
    assert min(position for name, _, position, _ in later if name == "books") == 0
