"""`audit --log`: a job that was changed, rewound, skipped and truncated, counted from its store."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from dataloader_client import DataServiceLoader, Mesh
from dataloader_svc.config.load import load_config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.planner.history import current_generation
from dataloader_svc.store import open_store
from reading import take_step
from real_job import job_values, run_cli, serve, write_config, write_data


def test_a_job_with_a_past(tmp_path: Path) -> None:
    values = job_values(write_data(tmp_path / "data"), planner={"keep": 6})
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        for _ in range(12):
            take_step(loader)
            if loader.state_dict()["step"] == 6:
                state = loader.state_dict()
        loader.load_state_dict(state)
        loader.skip(8, 10, "loss spike")
        loader.set_mixture({"notes": 1, "photos": 1}, at_step=14)
        for _ in range(14):
            take_step(loader)
        whole = run_cli("audit", config, "--log", "--json")
        assert whole.returncode == 0, whole.stdout + whole.stderr
        loader.commit()
        for _ in range(6):
            take_step(loader)
    found = json.loads(whole.stdout)
    assert [(row["generation"], row["first"], row["reason"]) for row in found["generations"]] == [
        (1, 0, "first start"),
        (2, 6, "steps 8 to 9 are skipped: loss spike"),
    ]
    assert found["skipped_steps"] == 2
    assert found["in_skipped_steps"] > 0
    assert found["mixture_deviation"] <= 1
    assert found["findings"] == []

    later = run_cli("audit", config, "--log")
    assert later.returncode == 0, later.stdout + later.stderr
    assert "it has steps 15 to" in later.stdout
    assert "those before were removed after the trainers had committed later ones" in later.stdout
    assert "every position once" in later.stdout

    loaded = load_config(config)
    spec = job_spec(loaded, tmp_path, "127.0.0.1:0")
    with contextlib.closing(open_store(spec.store, spec.base_dir)) as store:  # a position that is drawn again
        log = current_generation(store).log
        step, record = store.last(log)
        copies = [(number, data) for number, data in store.read(log, 0, 100) if number < step]
        store.append(log, step + 1, _of_step(copies[-1][1], record, step + 1), fence=None)
    broken = run_cli("audit", config, "--log")
    assert broken.returncode == 1
    assert "BROKEN once: mesh log" in broken.stdout


def _of_step(pieces: bytes, state: bytes, step: int) -> bytes:
    """A record of `step` with the pieces of one and the state of another."""
    from dataloader_client._pb import plan_pb2

    record, other = plan_pb2.PlanRecord.FromString(pieces), plan_pb2.PlanRecord.FromString(state)
    after = json.loads(other.state_json)
    after["step"] = step + 1
    record.step, record.state_json = step, json.dumps(after)
    return record.SerializeToString()
