"""Transforms through the commands a person types: `check`, `audit`, and a resume with another filter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dataloader_client import DataServiceLoader
from dataloader_client.errors import StateMismatchError
from reading import take_step
from real_job import job_values, run_cli, serve, words, write_config

ROWS = 200


@pytest.fixture
def values(data: Path, tmp_path: Path) -> dict[str, Any]:
    """Notes of which two fifths pass a filter; one makes the mapped function raise, another ends it."""
    rows = [{"text": words(n, 6), "score": n % 10, "meta": {"lang": "en"}} for n in range(ROWS)]
    rows[7]["score"] = None
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "notes_of_test.py").write_text(
        "import sys\n\n\ndef tidy(row):\n"
        "    if row['text'].startswith('16:'):\n        raise ValueError('no title')\n"
        "    if row['text'].startswith('26:'):\n        sys.exit(1)\n"
        "    return {'text': row['text'].upper()}\n"
    )
    made = job_values(data)
    made["sources"] = {
        "notes": {
            "format": "jsonl",
            "path": "notes.jsonl",
            "text": "text",
            "extent": 1024,
            "shuffle": {"block": 2048},
            "transforms": [{"filter": "score >= 6 and meta.lang == 'en'"}, {"map": "notes_of_test:tidy"}],
        },
        "photos": made["sources"]["photos"]
        | {"transforms": [{"max_samples": 30}, {"crop": {"height": 28, "width": 56, "at": "random"}}]},
    }
    made["mixture"] = {"schedule": [{"step": 0, "notes": 0.6, "photos": 0.4}]}
    del made["index_cache"]
    return made


def test_check_counts_what_is_filtered(values: dict[str, Any], tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", values)
    done = run_cli("check", config, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    notes, photos = (json.loads(done.stdout)["sources"][name] for name in ("notes", "photos"))
    assert (notes["rows"], notes["rows_read"], notes["filtered"]) == (ROWS, ROWS, ROWS * 6 // 10 + 1)
    assert notes["bad"] == {"map_failed": 2}
    assert (photos["rows"], photos["filtered"], photos["media"]) == (30, 0, 30)
    done = run_cli("check", config)
    assert "filtered" in done.stdout
    assert "ValueError: no title (notes_of_test.py:6 in tidy)" in done.stdout


def test_the_audit_holds_with_most_rows_filtered(values: dict[str, Any], tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", values)
    done = run_cli("audit", config, "--steps", 4, "--mesh", "dp=1", "--mesh", "dp=2,cp=2", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert all(report["contracts"].values())
    assert report["meshes"][0]["digests"] == report["meshes"][1]["digests"]
    for mesh in report["meshes"]:
        assert mesh["filtered"] > 5 * mesh["quarantined"] > 0


def test_delivered_rows_are_the_mapped_ones_and_another_filter_is_no_resume(
    values: dict[str, Any], tmp_path: Path
) -> None:
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        for _ in range(2):
            assert take_step(loader)
        state = loader.state_dict()
    listed = run_cli("quarantine", config, "--json")
    assert {row["reason"] for row in json.loads(listed.stdout)} <= {"map_failed"}
    values["sources"]["notes"]["transforms"][0] = {"filter": "score >= 5"}
    write_config(config, values)
    named = pytest.raises(StateMismatchError, match=r"sources\.notes\.transforms")
    with serve(config) as served, named, DataServiceLoader(served.address, state=state) as loader:
        take_step(loader)


@pytest.mark.parametrize(
    ("transforms", "place", "part"),
    [
        ([{"max_samples": 9}, {"filtr": "a"}], "1.filtr", "unknown transform 'filtr'; known: crop, filter"),
        ([{"filter": "score >"}], "0.filter", "no expression"),
        ([{"subset": {"fractoin": 0.5}}], "0.subset", "did you mean 'fraction'?"),
        ([{"map": "notes_of_test:tidyy"}], "0.map", "did you mean 'tidy'?"),
        ([{"map": "nothing_of_test:tidy"}], "0.map", "nothing_of_test can't be imported"),
        ([{"crop": {"height": 28, "width": 28}}], "0.crop", "maps no pictures"),
        ([{"filter": "score > 99"}], "", "no row of 200 read is left: all are filtered"),
        ([{"filter": "scroe > 5"}], "", "no field 'scroe'; found: text, score, meta; did you mean 'score'?"),
    ],
)
def test_check_names_line_source_and_transform(
    values: dict[str, Any], tmp_path: Path, transforms: list[dict[str, Any]], place: str, part: str
) -> None:
    values["sources"]["notes"]["transforms"] = transforms
    config = write_config(tmp_path / "job.yaml", values)
    done = run_cli("check", config, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    problems = json.loads(done.stdout)["problems"]
    (problem,) = [line for line in problems if "sources.notes.transforms" in line]
    number, name = place.split(".") if place else ("", "")
    wanted = f"- {name}:" if place else "transforms:"
    lines = config.read_text().splitlines()
    assert wanted in lines[int(problem.split(":")[1]) - 1], problem
    assert f"sources.notes.transforms{f'.{number}.{name}' if place else ''}: " in problem
    assert part in problem
