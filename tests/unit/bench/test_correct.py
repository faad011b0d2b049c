"""What the peers' workloads of correctness make of what was delivered, and that each peer has a function."""

from __future__ import annotations

import pytest

from tests.bench.peers.correct import __main__ as running
from tests.bench.peers.correct import mixture, resume
from tests.bench.peers.environments import ENVIRONMENTS
from tests.bench.peers.table import OURS


@pytest.mark.parametrize("workload", [mixture, resume], ids=lambda workload: workload.__name__)
def test_a_workload_has_the_service_and_peers(workload):
    assert OURS in workload.PEERS
    assert len(workload.PEERS) > 2
    assert {running.NAMES.get(peer, "main") for peer in workload.PEERS} <= {"project", *ENVIRONMENTS}


def test_points_off_are_of_the_source_that_is_farthest():
    # Of 100: 50 small of 1 token, 30 middle of 2, 20 large of 10; of 1,000 there is nothing.
    rows = [["small", 1]] * 50 + [["middle", 2]] * 30 + [["large", 10]] * 20
    found = mixture.figures({"samples": {"rows": rows}, "tokens": {}, "default": {"rows": rows[:7]}})
    assert found == {
        "points off after 100 rows, samples": pytest.approx(30),  # small: 50 for 20, large: 20 for 50
        "points off after 100 rows, tokens": pytest.approx(100 * (200 / 310 - 0.5)),
        "rows to the end": 7,
    }


def test_rows_are_of_peers_that_ran_and_of_figures_with_a_better(monkeypatch):
    monkeypatch.setattr(running.Environments, "version", lambda *_: "1")
    found = {
        OURS: {"off": 2.0, "none": 0.0, "rows to the end": 9},
        "grain": {"off": 3.0, "none": 1.0, "rows to the end": 7},
        "litdata": {"failed": "words"},
    }
    environments = running.Environments(running.ROOT)
    rows = running._rows(mixture, "mixture", found, environments)
    assert [(row["peer"], row["figure"], row["ratio"]) for row in rows] == [
        ("grain", "off", 1.5),
        ("grain", "none", None),
    ]


def test_rows_are_lost_and_repeated():
    whole = list(range(resume.ROWS))
    said = {}
    for stop in resume.STOPS:
        said[f"before-{stop}"] = {"rows": whole[:100], "bytes": 12}
        said[f"after-{stop}"] = {"rows": whole[100:], "first": 0.5}
    said["after-50"] = {"rows": whole[90:-5], "first": None}
    found = resume.figures(said)
    assert (found["rows lost, 10 %"], found["rows repeated, 10 %"]) == (0, 0)
    assert (found["rows lost, 50 %"], found["rows repeated, 50 %"]) == (5, 10)
    assert found["s to first batch, 50 %"] == 0.0


def test_a_state_comes_back_as_it_was():
    for state in ({"step": 3, "rows": [1, 2]}, {"raw": b"\\x00"}, {"tuple": (1,)}, {3: "a key"}):
        assert resume._load(resume._dump(state)) == state
