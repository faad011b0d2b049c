"""What `check` says of several settings together."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataloader_svc.cli.check import _job_notes
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.testing.planning import plan_config


@pytest.mark.parametrize(("lead", "ahead", "said"), [(15, 4, True), (16, 4, False), (32, 40, True)])
def test_a_lead_that_planning_overtakes(lead: int, ahead: int, *, said: bool) -> None:
    adaptive = {"rule": "learning_speed", "lead": lead}
    config = plan_config({"a": 1, "b": 1}, mixture={"adaptive": adaptive}, planner={"ahead": ahead})
    notes = list(_job_notes(LoadedConfig(config, Path("m.yaml"), {}), {}))
    assert [note.startswith(f"mixture.adaptive: lead is {lead}") for note in notes] == [True] * said
