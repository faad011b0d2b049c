"""`explain` and `preview` of a job whose sources are filtered and cut down: they name what is left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataloader_client import DataServiceLoader, Mesh
from dataloader_svc.testing.tokenizer import EOS
from real_job import job_values, run_cli, serve, write_config

STEPS = 3
MOST_PHOTOS = 20
KEPT = {"notes": lambda row: row % 2 == 0, "pages": lambda row: row < 20}
"""By source: whether its filter keeps a row; `id` is the row in its shard."""


@pytest.fixture(scope="module")
def config(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that has run for STEPS steps."""
    values = job_values(data)
    values["sources"]["notes"]["transforms"] = [{"filter": "id % 2 == 0"}]
    values["sources"]["pages"]["transforms"] = [{"subset": 0.75}, {"filter": "id < 20"}]
    values["sources"]["photos"]["transforms"] = [{"max_samples": MOST_PHOTOS}]
    path = write_config(tmp_path_factory.mktemp("explain") / "mixture.yaml", values)
    with serve(path) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        for step in range(STEPS):
            loader.read(step)
    return path


def explained(config: Path, step: int) -> dict[str, Any]:
    result = run_cli("explain", config, "--json", "--step", step)
    assert result.returncode == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    assert value["notes"] == []
    return value


def documents(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for sequence in value["sequences"]:
        yield from sequence["documents"]


def text_of(shard: str, row: int) -> str:
    if shard.endswith(".parquet"):
        return str(pq.read_table(shard).column("content")[row].as_py())
    return str(json.loads(Path(shard).read_text().splitlines()[row])["text"])


def test_rows_are_those_that_the_transforms_keep(config: Path) -> None:
    names: dict[str, set[tuple[str, int]]] = {"notes": set(), "pages": set(), "photos": set()}
    passed: set[tuple[str, int, int]] = set()
    delivered: set[tuple[str, int, int]] = set()
    for step in range(STEPS):
        value = explained(config, step)
        for each in documents(value):
            names[each["source"]].add((each["shard"], each["row"]))
            delivered.add((each["source"], each["epoch"], each["position"]))
            assert KEPT.get(each["source"], lambda _: True)(each["row"]), each
        for each in value["skipped"]:
            assert each["reason"] == "filtered"
            assert not KEPT[each["source"]](each["row"]), each
            passed.add((each["source"], each["epoch"], each["position"]))
    assert all(names.values())
    assert MOST_PHOTOS // 2 < len(names["photos"]) <= MOST_PHOTOS < 2 * MOST_PHOTOS < 48
    assert any(source == "photos" and epoch == 1 for source, epoch, _ in delivered)
    assert {source for source, *_ in passed} == {"notes", "pages"}
    assert not passed & delivered


def test_filtered_rows_are_counted_not_listed(config: Path) -> None:
    step = next(step for step in range(STEPS) if explained(config, step)["skipped"])
    skipped = explained(config, step)["skipped"]
    done = run_cli("explain", config, "--step", step)
    assert done.returncode == 0
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("filtered by transforms")]
    counts = {name: int(count) for count, name in re.findall(r"([\d,]+) of (\w+)", line)}
    assert counts == {
        name: sum(each["source"] == name for each in skipped) for name in {each["source"] for each in skipped}
    }
    assert "passed over since the step before" not in done.stdout


def test_another_subset_is_another_order(config: Path, tmp_path: Path) -> None:
    changed = tmp_path / "mixture.yaml"
    changed.write_text(config.read_text().replace("subset: 0.75", "subset: 0.5"))
    store = next((config.parent / ".dataloader-svc").glob("*.db"))
    result = run_cli("explain", changed, "--json", "--step", 0, "--store", f"sqlite:///{store}")
    assert result.returncode == 0, result.stderr
    value = json.loads(result.stdout)
    assert (
        "pages: rows unknown: sources.pages.transforms changed since the step was planned" in value["notes"]
    )
    for each in documents(value):
        assert ("row" in each) == (each["source"] != "pages")
    for each in value["skipped"]:
        assert ("row" in each) == (each["source"] != "pages")


def test_preview_shows_the_same_rows_and_what_was_filtered(config: Path) -> None:
    result = run_cli("preview", config, "--json", "-n", 8)
    assert result.returncode == 0, result.stderr
    view, log = json.loads(result.stdout), explained(config, 0)
    assert view["digest"] == log["digest"]
    assert view["skipped"] == {"filtered": len(log["skipped"])}
    whole = [each for each in documents(view) if each["start"] == 0 and not each["media"]]
    assert {each["source"] for each in whole} == {"notes", "pages"}
    for each in whole:
        assert KEPT[each["source"]](each["row"]), each
        assert text_of(each["shard"], each["row"]).startswith(each["text"].removesuffix(EOS))
        assert len(each["text"]) > len(EOS)

    shown = run_cli("preview", config)
    assert f"passed over since the step before: {len(log['skipped'])} filtered" in shown.stdout
