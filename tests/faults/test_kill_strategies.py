"""Strategies that keep more between steps than others: killed, or gone on with from a checkpoint alone, they
deliver what an undisturbed job delivers. What waits for its like, and the rest of a cut document, is state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reading import Reader, assert_equal
from real_job import job_values, serve, write_config

STEPS = 24
FAULTS = ("planner.plan_made:kill:4", "planner.plan_appended:kill:5", "constructor.built:kill:6")

STRATEGIES: dict[str, dict[str, Any]] = {
    "relaxed": {
        "mode": "relaxed",
        "pack": "variable",
        "fill": 0.8,
        "cost": {"llm": {"linear": 1, "quadratic": 0.02}},
    },
    "concatenate": {"pack": "concatenate"},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_waits_survives(data: Path, tmp_path: Path, name: str) -> None:
    values = job_values(data, strategy=STRATEGIES[name])
    with serve(write_config(tmp_path / "calm.yaml", values)) as served, Reader(served.address) as calm:
        calm.allow(STEPS)
        calm.wait()
    waited = [len(calm.states[step]["service"]["waiting"]) for step in range(STEPS)]
    assert max(waited) > 0

    marks = tmp_path / "fired"
    marks.mkdir()
    (tmp_path / "killed").mkdir()
    config = write_config(tmp_path / "killed" / "job.yaml", values)
    environment = {"DATALOADER_FAULT": ",".join(FAULTS), "DATALOADER_FAULT_DIR": str(marks)}
    with serve(config, **environment) as served, Reader(served.address) as killed:
        killed.allow(STEPS)
        killed.wait()
    assert {path.name for path in marks.iterdir()} == {fault.replace(":", "_") for fault in FAULTS}
    assert_equal(killed.steps, calm.steps)

    checkpoint = waited.index(max(waited))
    (tmp_path / "elsewhere").mkdir()
    config = write_config(tmp_path / "elsewhere" / "job.yaml", values)
    state = calm.states[checkpoint]
    with serve(config) as served, Reader(served.address, state=state) as resumed:
        resumed.allow(STEPS - 1 - checkpoint)
        resumed.wait()
    rest = {step: calm.steps[step] for step in range(checkpoint + 1, STEPS)}
    assert_equal(resumed.steps, rest)
    assert resumed.states[STEPS - 1] == calm.states[STEPS - 1]
