"""The rows of docs/benchmarks.json: a new run replaces its own rows and no other's."""

from __future__ import annotations

import json

import pytest

from tests.bench.peers import record
from tests.bench.peers.report import Results
from tests.bench.peers.table import OURS

RUN = {"rate": 20.0, "per_cpu_s": 3.0, "pss": 100.0, "first_s": 2.0, "others": 0.25}


FIGURES = 4  # rate, amounts a CPU second, memory, first batch


def results(rate: float, peer: str = "grain") -> Results:
    found = Results(versions={OURS: "0.1.0", peer: "0.2.18"})
    found.add("text", "same", OURS, RUN | {"rate": rate})
    found.add("text", "same", peer, RUN | {"rate": 3.0})
    return found


def test_a_row_says_how_to_see_it_again(tmp_path):
    path = tmp_path / "rows.json"
    assert record.write(results(10.0), path, "python -m x") == FIGURES
    (row,) = (row for row in json.loads(path.read_text()) if row["figure"] == "tokens/s")
    assert (row["ours"], row["theirs"], row["ratio"], row["runs"]) == (10.0, 3.0, 3.333, 1)
    assert row["versions"] == {OURS: "0.1.0", "grain": "0.2.18"}
    assert row["command"] == "python -m x"
    assert row["others"] == {OURS: 0.25, "grain": 0.25}
    assert row["machine"] == record.machine()


def test_a_run_replaces_its_own_rows(tmp_path):
    path = tmp_path / "rows.json"
    record.write(results(10.0), path, "first")
    record.write(results(10.0, "litdata"), path, "second")
    assert record.write(results(60.0), path, "third") == 2 * FIGURES
    rows = [row for row in json.loads(path.read_text()) if row["figure"] == "tokens/s"]
    assert [(row["peer"], row["ratio"], row["command"]) for row in rows] == [
        ("grain", 20.0, "third"),
        ("litdata", 3.333, "second"),
    ]


@pytest.mark.parametrize("text", ["{", "[1]", '[{"peer": "x"}]', "7"])
def test_what_are_no_rows_is_not_overwritten(tmp_path, text):
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"rows\.json: .*remove the file"):
        record.write(results(10.0), path, "x")
    assert path.read_text() == text
