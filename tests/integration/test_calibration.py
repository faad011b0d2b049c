"""Ranks of a real job report times from a model that nobody told the service: it finds it, and who is slow.

What is learned decides where sequences go; kill -9 of the planner must not change where those of steps that
are there went. Nothing is waited for: trainers go on until the planner knows, within a number of steps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_client import Batch, Coords, DataServiceLoader, Mesh, methods
from dataloader_client._pb import common_pb2, planner_service_pb2
from dataloader_svc.config.load import load_config
from dataloader_svc.constructor.peers import PLANNER_KEY
from dataloader_svc.engine.access import role_credentials
from dataloader_svc.engine.spec import JobSpec, job_spec
from dataloader_svc.rpc.stubs import Peer
from dataloader_svc.sample import keyed_rng
from dataloader_svc.store.open import open_existing
from reading import take_step
from real_job import Served, job_values, run_cli, serve, write_config

MESH = Mesh(dp=4)
MOST_STEPS = 200
LIMIT_S = 60.0
FIXED, TOKEN, SQUARE, PATCH = 0.2, 1e-3, 2e-5, 4e-3
"""The hidden model: seconds of a step, a token, a squared length, a patch."""
CONFIGURED = {"llm": {"linear": 1.0, "quadratic": 0.001}, "encoder": {"patches": 1.0}}
Spans = list[tuple[object, ...]]


class Trainers:
    """All ranks of a job in one process, in step; `spans` is what each got, by (rank, step)."""

    def __init__(self, served: Served, stack: ExitStack) -> None:
        self.served = served
        self.spans: dict[tuple[int, int], Spans] = {}
        self.slow = dict.fromkeys(range(MESH.dp), 1.0)
        self.loaders = [
            stack.enter_context(DataServiceLoader(served.address, mesh=MESH, coords=Coords(dp=rank)))
            for rank in range(MESH.dp)
        ]

    def steps(self, most: int) -> Iterator[int]:
        """Take steps and report them; the number of each that is done."""
        for _ in range(most):
            for rank, loader in enumerate(self.loaders):
                batches = take_step(loader)
                step = batches[0].step
                self.spans[rank, step] = spans_of(batches)
                noise = float(keyed_rng(0, "time", rank, step).normal(1.0, 0.01))
                loader.report(compute_time=seconds_of(batches) * noise * self.slow[rank])
            yield step


def spans_of(batches: list[Batch]) -> Spans:
    return [(batch.microbatch, *span) for batch in batches for span in batch.manifest.spans()]


def seconds_of(batches: list[Batch]) -> float:
    total = FIXED
    for batch in batches:
        lengths = batch.manifest.columns["span_length"].astype(np.float64)
        patches = len(batch.numpy["pixel_values"]) if "pixel_values" in batch.numpy else 0
        total += float(TOKEN * lengths.sum() + SQUARE * (lengths**2).sum() + PATCH * patches)
    return total


def calibration(served: Served, config: Path) -> planner_service_pb2.Calibration:
    """What the planner says of itself."""
    loaded = load_config(config)
    spec = job_spec(loaded, loaded.base_dir, "127.0.0.1:0", None)
    store = open_existing(spec.store, spec.base_dir)
    assert store is not None
    with closing(store):
        value = store.get(PLANNER_KEY)
    assert value is not None

    credentials = role_credentials(JobSpec.read(served.run_dir / "job.json"))

    async def ask() -> planner_service_pb2.PlannerStatus:
        async with Peer(json.loads(value)["address"], "planner", credentials) as peer:
            status: Any = await peer.call(methods.PLANNER_STATUS, common_pb2.Empty(), timeout_s=LIMIT_S)
            return status

    return asyncio.run(ask()).calibration


def test_the_hidden_model_is_found_and_steps_are_placed_again_as_they_were(
    data: Path, tmp_path: Path
) -> None:
    strategy = {"cost": CONFIGURED, "calibrate": True}
    config = write_config(tmp_path / "job.yaml", job_values(data, strategy=strategy))
    with serve(config) as served, ExitStack() as stack:
        trainers = Trainers(served, stack)
        for step in trainers.steps(MOST_STEPS):
            found = calibration(served, config)
            if found.observations >= 400 and step > found.from_step + 5 > 5:
                break
        assert found.error < 0.02
        assert found.per_unit[1] * 0.001 == pytest.approx(SQUARE, rel=0.08)
        assert found.per_unit[2] == pytest.approx(PATCH, rel=0.05)
        assert found.factors, "steps are placed by it"
        assert dict(found.slow) == {}

        served.roles()["planner-0"].kill()
        served.wait_said("planner-0 is back")
        after = calibration(served, config)
        assert (after.factors, after.from_step) == (found.factors, found.from_step)
        for rank, loader in enumerate(trainers.loaders):
            for number in range(0, step + 1, 5):
                assert spans_of(loader.read(number)) == trainers.spans[rank, number]
        said = explained(config, step)
        assert any("fitted to step times" in note for note in said["notes"])
        for rank in range(MESH.dp):
            assert documents_of(said, rank) == sorted(span[1:6] for span in trainers.spans[rank, step])

        trainers.slow[2] = 1.5
        for _ in trainers.steps(MOST_STEPS):
            found = calibration(served, config)
            if found.slow:
                break
        assert list(found.slow) == [2]
        assert found.slow[2] > 1.1
    assert "dp rank 2 is slow" in served.logs()


def test_a_planner_killed_behind_the_writing_of_factors_comes_back_with_them(
    data: Path, tmp_path: Path
) -> None:
    """They hold from a step that nobody has seen: what was delivered stays as it was."""
    strategy = {"cost": CONFIGURED, "calibrate": True}
    config = write_config(tmp_path / "job.yaml", job_values(data, strategy=strategy))
    mark = tmp_path / "planner.factors_written_kill_1"
    fault = {"DATALOADER_FAULT": "planner.factors_written:kill:1", "DATALOADER_FAULT_DIR": str(tmp_path)}
    with serve(config, **fault) as served, ExitStack() as stack:
        trainers = Trainers(served, stack)
        fired = next(step for step in trainers.steps(MOST_STEPS) if mark.exists())
        served.wait_said("planner-0 is back")
        found = calibration(served, config)
        assert found.factors
        for rank, loader in enumerate(trainers.loaders):
            for number in range(0, fired + 1, 5):
                assert spans_of(loader.read(number)) == trainers.spans[rank, number]


def explained(config: Path, step: int) -> dict[str, Any]:
    result = run_cli("explain", config, "--step", step, "--json")
    assert result.returncode == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def documents_of(said: dict[str, Any], rank: int) -> list[tuple[object, ...]]:
    return sorted(
        (d["source"], d["epoch"], d["position"], d["start"], d["tokens"])
        for sequence in said["sequences"]
        if sequence["dp_rank"] == rank
        for d in sequence["documents"]
    )
