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


# ---- shards


def test_shards_appended_between_runs_come_with_the_next_epoch(tmp_path: Path) -> None:
    """What was begun stays as it was, in the same store, on a new machine, and after another addition."""
    web = tmp_path / "web"
    write_shard(web, "part-0", range(100))
    write_shard(web, "part-1", range(100, 170))
    # No plan reaches the next epoch before the shards are there.
    config = write_config(tmp_path / "job.yaml", job(tmp_path, "web", planner={"ahead": 2}))
    rows = Rows(tmp_path)
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        first = rows.steps(loader, 3)
        state = state_of(loader)
        reference = rows.steps(loader, 3)
    assert {epoch for _, epoch, _, _ in first + reference} == {0}

    write_shard(web, "part-2", range(170, 230))
    with serve(config) as served, DataServiceLoader(served.address, state=state) as loader:
        assert rows.steps(loader, 3) == reference
        later = rows.steps(loader, 31)
        late = state_of(loader)
        rest = rows.steps(loader, 4)
        assert "source web: 1 appended shards come with its next epoch" in served.logs()
    found = first + reference + later
    assert_once_of_epochs(found, late, [170, 230, 230])
    assert {number for _, epoch, _, number in found if epoch == 0} == set(range(170))
    assert {number for _, epoch, _, number in found + rest if epoch == 1} == set(range(230))
    assert late["service"]["sources"]["web"]["before"][0][:2] == [0, 2]

    write_shard(web, "part-3", range(230, 250))
    elsewhere = write_config(
        tmp_path / "elsewhere.yaml", job(tmp_path, "web", index_cache="other", job="new")
    )
    with serve(elsewhere) as served:
        with DataServiceLoader(served.address, state=state) as loader:
            assert rows.steps(loader, 3) == reference
        with DataServiceLoader(served.address, state=late) as loader:
            assert rows.steps(loader, 4) == rest
    explained = run_cli("explain", config, "--step", "4", "--json")
    assert explained.returncode == 0, explained.stderr
    assert "part-1.jsonl" in explained.stdout
    assert "rows unknown" not in explained.stdout


def assert_once_of_epochs(found: list[Row], state: dict[str, Any], sizes: list[int]) -> None:
    """As `assert_once`, of the one source `web`, whose epochs have so many rows."""
    at = state["service"]["sources"]["web"]
    waits = [tuple(entry[1:3]) for entry in state["service"]["waiting"]]
    came = Counter([(epoch, position) for _, epoch, position, _ in found] + waits)
    drawn = [(epoch, p) for epoch in range(at["epoch"]) for p in range(sizes[epoch])]
    assert came == Counter(drawn + [(at["epoch"], p) for p in range(at["position"])])


def test_shards_appended_while_it_runs_are_not_seen_by_a_loader_that_is_restarted(tmp_path: Path) -> None:
    """It reads the epochs that the planner knows as they were described, though it lists more."""
    web = tmp_path / "web"
    write_shard(web, "part-0", range(40))
    write_shard(web, "part-1", range(40, 70))
    config = write_config(tmp_path / "job.yaml", job(tmp_path, "web"))
    rows = Rows(tmp_path)
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        reference = rows.steps(loader, 14)
        assert max(epoch for _, epoch, _, _ in reference) > 0
    values = job(tmp_path, "web", job="again", loader={"memory": "64KiB"})  # nothing is held for long
    with serve(write_config(config, values)) as served, DataServiceLoader(served.address) as loader:
        found = rows.steps(loader, 2)
        write_shard(web, "part-2", range(70, 100))
        for name, role in served.roles().items():
            if name.startswith("loader"):
                role.kill()
        assert found + rows.steps(loader, 12) == reference


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda web: (web / "part-0.jsonl").unlink(), r"part-0\.jsonl: is gone; put it back"),
        (
            lambda web: write_shard(web, "part-00", [7]),
            r"part-00\.jsonl: is new, and not listed after the others",
        ),
        (lambda web: write_shard(web, "part-1", range(200, 230)), r"part-1\.jsonl: holds other rows"),
        (
            lambda web: (web / "part-1.jsonl").rename(web / "part-2.jsonl"),
            r"part-1\.jsonl: is gone; put it back",
        ),
    ],
)
def test_other_changes_of_shards_are_refused_by_name(tmp_path: Path, change: Any, told: str) -> None:
    web = tmp_path / "web"
    write_shard(web, "part-0", range(40))
    write_shard(web, "part-1", range(40, 70))
    config = write_config(tmp_path / "job.yaml", job(tmp_path, "web"))
    rows = Rows(tmp_path)
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        rows.steps(loader, 2)
        state = state_of(loader)
    change(web)
    write_shard(web, "part-9", range(300, 310))  # beside a change that is fine
    with serve(config) as served:
        with (
            pytest.raises(StateMismatchError, match=rf"source 'web': its files are not those.*{told}"),
            DataServiceLoader(served.address, state=state) as loader,
        ):
            rows.steps(loader, 1000)
        with DataServiceLoader(served.address) as loader:  # from the start, with the files that there are
            numbers = {number for *_, number in rows.steps(loader, 8)}
            assert numbers >= set(range(300, 310))
