"""A few hundred damaged inputs at each run, always the same; `make fuzz` makes thousands of new ones."""

import subprocess
import sys

import numpy as np
import pytest

from dataloader_svc.sample import keyed_rng
from dataloader_svc.sources import SOURCES
from tests.fuzz import fuzz
from tests.fuzz.mutate import MUTATIONS, SAME_SIZE, mutated
from tests.fuzz.targets import NOT_HERE, TARGETS

CASES = 25


def test_nothing_but_refusals():
    tally = fuzz.Tally()
    fuzz.run([(target, 0, CASES) for target in TARGETS if target != "mp4"], tally)
    assert not tally.found, "\n".join(map(str, tally.found))
    assert sum(counts.total() for counts in tally.outcomes.values()) == CASES * (len(TARGETS) - 1)
    for target, counts in tally.outcomes.items():
        assert counts["partly"] + counts["refused"] > 0, f"{target}: damage is never seen"
    assert sum(counts["read"] + counts["partly"] for counts in tally.outcomes.values()) > 200


def test_every_format_is_fuzzed():
    assert set(SOURCES.names()) - NOT_HERE <= set(TARGETS)


@pytest.mark.parametrize("size", [1, 5, 600, 9000])
def test_mutations_follow_the_seed_alone(size):
    data = bytes(np.arange(size, dtype=np.uint8))
    for seed in range(60):
        once, again = (mutated(data, keyed_rng(seed, "m")) for _ in range(2))
        assert once == again
        assert len(mutated(data, keyed_rng(seed, "m"), SAME_SIZE)) == size
    assert sum(mutated(data, keyed_rng(seed, "m")) != data for seed in range(60)) > 20
    assert set(SAME_SIZE) <= set(MUTATIONS)


# What the watcher makes of a child that is not well: scripts in its place, which speak as child.py does.
CHILDREN = {
    "dies": "print('begin a 5', flush=True); os.kill(os.getpid(), signal.SIGABRT)",
    "hangs": "print('begin a 5', flush=True); select.select([], [], [])",
    "raises": "print('begin a 5'); print('found ZeroDivisionError() at x.py:1')",
    "is well": "print('begin a 5'); print('end read')",
}


def watched(monkeypatch, script, patience_s=60.0):
    """Tally of a run in which the first child is the script, and all others say that all is well."""
    begun = []

    def start(command, **settings):
        begun.append(command[3:])
        target, first, count = command[3].rsplit(":", 2)
        seeds = range(int(first), int(first) + int(count))
        well = "".join(f"print('begin {target} {seed}'); print('end read');" for seed in seeds)
        code = f"import os, select, signal; {script if len(begun) == 1 else well}"
        return real([sys.executable, "-c", code], **settings)

    real = subprocess.Popen
    monkeypatch.setattr(fuzz.subprocess, "Popen", start)
    tally = fuzz.Tally()
    fuzz.run([("a", 5, 3)], tally, patience_s)
    return tally, begun


def test_a_child_that_dies_is_named_and_the_rest_goes_on(monkeypatch):
    tally, begun = watched(monkeypatch, CHILDREN["dies"])
    assert [(found.target, found.seed, found.what) for found in tally.found] == [("a", 5, "died: SIGABRT")]
    assert begun == [["a:5:3"], ["a:6:2"]]
    assert tally.outcomes["a"] == {"found": 1, "read": 2}
    assert "--target a --seed 5 --count 1" in str(tally.found[0])


def test_a_child_that_dies_leaves_no_files(monkeypatch, tmp_path):
    monkeypatch.setattr(fuzz.tempfile, "tempdir", str(tmp_path))
    write = "(Path(tempfile.mkdtemp()) / 'left').write_bytes(b'')"
    watched(monkeypatch, f"import tempfile; from pathlib import Path; {write}; {CHILDREN['dies']}")
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_hangs_is_killed_and_named(monkeypatch):
    tally, _ = watched(monkeypatch, CHILDREN["hangs"], patience_s=0.2)
    assert tally.found[0].what == "hung for 0 s"
    assert tally.outcomes["a"]["read"] == 2


def test_an_exception_is_named_with_its_place(monkeypatch):
    tally, _ = watched(monkeypatch, CHILDREN["raises"])
    assert tally.found[0].what == "ZeroDivisionError() at x.py:1"
    header, line = (text.split() for text in tally.table().splitlines())
    assert dict(zip(header[1:], line[1:], strict=True)) == {
        "cases": "1",
        "read": "0",
        "partly": "0",
        "refused": "0",
        "killed": "0",
        "found": "1",
    }


def test_what_may_die_is_counted_and_no_finding():
    tally = fuzz.Tally()
    tally.fault("mp4", 1, "died: SIGSEGV")
    tally.fault("mp4", 2, "KeyError()")
    assert tally.outcomes["mp4"] == {"killed": 1, "found": 1}
    assert [found.seed for found in tally.found] == [2]


def test_a_child_that_can_not_begin_is_no_finding(monkeypatch):
    with pytest.raises(RuntimeError, match="ended with 1 outside of any case"):
        watched(monkeypatch, "raise SystemExit(1)")
