"""`ensure_modality` through the real command and processes: every rank has a picture when one rank has."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from dataloader_client import Coords, DataServiceLoader, Mesh
from reading import take_step
from real_job import job_values, run_cli, serve, write_config

FEW_PICTURES = {"schedule": [{"step": 0, "notes": 0.5, "pages": 0.45, "photos": 0.05}]}


def job(data: Path, folder: Path) -> Path:
    values = job_values(data, mixture=FEW_PICTURES, ensure_modality=True)
    return write_config(folder / "job.yaml", values)


def test_contracts_hold_with_placeholders(data: Path, tmp_path: Path) -> None:
    meshes = ["dp=1", "dp=4", "dp=2,cp=2"]
    options = [word for mesh in meshes for word in ("--mesh", mesh)]
    done = run_cli("audit", job(data, tmp_path), "--steps", 4, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert all(report["contracts"].values())
    assert len({tuple(row["digests"]) for row in report["meshes"]}) == 1


def test_no_rank_lacks_what_another_has(data: Path, tmp_path: Path) -> None:
    placeholders = 0
    with serve(job(data, tmp_path)) as served, ExitStack() as stack:
        loaders = [
            stack.enter_context(DataServiceLoader(served.address, mesh=Mesh(dp=4), coords=Coords(dp=dp)))
            for dp in range(4)
        ]
        for _ in range(6):
            for batch in [batch for loader in loaders for batch in take_step(loader)]:
                assert ("image_grid_thw" in batch) == batch.presence["image"]
                if not batch.presence["image"]:
                    continue
                grids = batch.numpy["image_grid_thw"]
                assert len(grids) > 0
                if not len(batch.numpy["image_index"]):
                    placeholders += 1
                    assert grids.tolist() == [[1, 2, 2]]
                    assert batch.numpy["pixel_values"].shape[0] == 4
                    assert not batch.numpy["pixel_values"].any()
    assert placeholders, "some rank had no picture of its own"
