"""Which factors and changes of the mixture no kept step needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataloader_svc.planner import retention
from dataloader_svc.planner.calibration import Factors, factors_at
from dataloader_svc.planner.change import Change, Learned
from dataloader_svc.planner.retention import past_changes, superseded_factors

FACTORS = [Factors(step, (float(step),), 0.0) for step in (3, 7, 8, 20)]
CHANGES = [Change(f"{step}", step + 1, {"a": 1.0}, 0, step, "digest") for step in (3, 7, 8, 20)]


@pytest.mark.parametrize("before", range(25))
def test_every_kept_step_finds_the_factors_that_it_was_placed_by(before):
    spent = superseded_factors(FACTORS, before)
    for step in range(before, 30):
        assert factors_at(FACTORS[spent:], step) == factors_at(FACTORS, step)
    assert spent == sum(step <= before for step in (7, 8, 20))
    assert superseded_factors([], before) == 0


@pytest.mark.parametrize(("before", "past"), [(0, 0), (3, 0), (4, 1), (8, 2), (9, 3), (20, 3), (21, 4)])
def test_a_change_goes_when_all_kept_states_know_it(monkeypatch, before, past):
    monkeypatch.setattr(retention, "_KEPT_CHANGES", 0)
    assert past_changes(CHANGES, before) == past
    monkeypatch.setattr(retention, "_KEPT_CHANGES", 3)
    assert past_changes(CHANGES, before) == min(past, 1)


def test_what_was_learned_last_stays(monkeypatch):
    monkeypatch.setattr(retention, "_KEPT_CHANGES", 0)
    learned = Learned.__new__(Learned)
    changes = [
        replace(change, learned=learned) if n in (0, 2) else change for n, change in enumerate(CHANGES)
    ]
    assert past_changes(changes, 100) == 2
