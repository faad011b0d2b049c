"""kill -9 around a readmission: of the command between its writes, of roles at each point of its steps."""

from __future__ import annotations

import shutil
from pathlib import Path

from dataloader_client import Mesh
from real_job import run_cli, serve
from repairs import Trainer, assert_each_once, mend, quarantined, readmit, write_job

POINTS = (
    "planner.plan_made",
    "planner.quarantine_listed",
    "planner.plan_listed",
    "store.append_written",
    "planner.plan_appended",
    "planner.plan_published",
    "loader.block_read",
    "constructor.built",
)


def test_killed_around_the_readmission(data: Path, tmp_path: Path) -> None:
    job = write_job(data, tmp_path / "job", samples=4)  # they come back in more than one step
    trainer = Trainer()
    marks = tmp_path / "listed"
    marks.mkdir()
    fault = {"DATALOADER_FAULT": "constructor.quarantined:kill:1", "DATALOADER_FAULT_DIR": str(marks)}
    with serve(job, **fault) as service:
        trainer.read(service.address)
    assert [path.name for path in marks.iterdir()] == ["constructor.quarantined_kill_1"]
    mend(job)
    for point in ("readmit.files_noted", "readmit.requested"):
        killed = run_cli("quarantine", "readmit", job, "--all", DATALOADER_FAULT=f"{point}:kill:1")
        assert killed.returncode == -9
    assert readmit(job, "--all")["counts"] == {"asked": 6}

    # The same job on another mesh, undisturbed: what it delivers is the standard.
    shutil.copytree(job.parent, tmp_path / "other")
    other = trainer.copy()
    with serve(tmp_path / "other" / "job.yaml") as service:
        other.read(service.address)
    assert_each_once(tmp_path / "other" / "job.yaml", other, silent=1)

    marks = tmp_path / "fired"
    marks.mkdir()
    faults = [f"{point}:kill:1" for point in POINTS]
    fault = {"DATALOADER_FAULT": ",".join(faults), "DATALOADER_FAULT_DIR": str(marks)}
    with serve(job, **fault) as service:
        trainer.read(service.address, mesh=Mesh(dp=2))
    assert {path.name for path in marks.iterdir()} == {fault.replace(":", "_") for fault in faults}
    assert_each_once(job, trainer, silent=1)
    assert {row["readmitted"] is not None for row in quarantined(job).values()} == {True}
    assert {step: one.digest for step, one in trainer.deliveries.items()} == {
        step: one.digest for step, one in other.deliveries.items()
    }
