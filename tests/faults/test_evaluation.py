"""The service is killed, in part and whole, while trainers evaluate: they get what they got before."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataloader_client import Batch, DataServiceLoader, Mesh
from dataloader_client.errors import DataStoppedError, SessionSupersededError
from reading import Fingerprint, fingerprint
from real_job import job_values, serve, starting, write_config

VICTIMS = ("eval-planner-0", "constructor-0", "loader-0", "planner-0", "eval-planner-0", "loader-1")


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Path:
    """The tiny job, evaluated on its photos and a third of its notes in steps of two sequences."""
    values: dict[str, Any] = job_values(data)
    values["sources"]["notes"]["extent"] = 256
    photos = {
        name: values["sources"]["photos"][name] for name in ("format", "path", "text", "image", "extent")
    }
    values["evaluation"] = {
        "held_out": {"notes": 0.3},
        "sources": {"album": photos},
        "global_batch": {"sequences": 2},
    }
    return write_config(tmp_path / "job.yaml", values)


def steps_of(loader: DataServiceLoader) -> Iterator[Fingerprint]:
    """One pass over what is evaluated on."""
    batches: list[Batch] = []
    for batch in loader:
        batches.append(batch)
        if batch.is_last_microbatch:
            yield fingerprint(batches)
            batches = []


def test_each_process_is_killed_in_turn(config: Path) -> None:
    with serve(config) as served, DataServiceLoader(served.address, split="eval", prefetch=1) as loader:
        undisturbed = [*steps_of(loader)]
        assert len(undisturbed) > len(VICTIMS) + 2
        found = []
        for number, step in enumerate(steps_of(loader)):
            found.append(step)
            if number < len(VICTIMS):
                victim = VICTIMS[number]
                served.roles()[victim].kill()
                served.wait_said(f"{victim} is back", times=VICTIMS[: number + 1].count(victim))
        with DataServiceLoader(served.address) as training:
            assert next(training).step == 0
    assert found == undisturbed


def test_the_service_is_killed_and_another_goes_on_in_the_middle(config: Path) -> None:
    with starting(config) as first:
        first.wait_ready()
        with DataServiceLoader(first.address, split="eval", prefetch=1) as loader:
            undisturbed = [*steps_of(loader)]
            steps = steps_of(loader)
            found = [next(steps) for _ in range(3)]
            first.stop(signal.SIGKILL)
            with serve(config, "--address", first.address):
                found += steps
    assert found == undisturbed


def test_ranks_that_evaluate_apart_and_stop_where_they_like(config: Path) -> None:
    """One is through before the other begins, which leaves in the middle and comes back on its own."""
    with serve(config) as served:
        ranks = [
            DataServiceLoader(served.address, split="eval", mesh=Mesh(dp=2), rank=rank) for rank in range(2)
        ]
        try:
            alone = [[*steps_of(loader)] for loader in ranks]
            assert len(alone[0]) == len(alone[1])
            steps = steps_of(ranks[1])
            assert [next(steps), next(steps)] == alone[1][:2]
            steps.close()
            assert [*steps_of(ranks[0])] == alone[0]
            assert [*steps_of(ranks[1])] == alone[1]
            with DataServiceLoader(served.address, split="eval", mesh=Mesh(dp=1), rank=0) as other:
                assert next(other).step == 0
                with pytest.raises(SessionSupersededError):
                    ranks[0].read(0)
            assert [*steps_of(ranks[1])] == alone[1]  # with its next pass it is back
        finally:
            for loader in ranks:
                loader.close()


def test_an_evaluation_that_meets_bad_data_leaves_training_alone(config: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rows.jsonl").write_text("{no json}\n" * 40)
    values = yaml.safe_load(config.read_text())
    values["evaluation"]["sources"]["album"] = {
        "format": "jsonl",
        "path": f"{tmp_path}/bad/*.jsonl",
        "text": "text",
        "max_bad_minimum": 5,
    }
    with serve(write_config(config, values)) as served, DataServiceLoader(served.address) as training:
        assert next(training).step == 0
        with (
            DataServiceLoader(served.address, split="eval") as loader,
            pytest.raises(DataStoppedError, match="album"),
        ):
            list(loader)
        steps = {batch.step for batch in islice(training, 60)}
        assert max(steps) >= 7
        assert served.roles().keys() >= {"planner-0", "eval-planner-0", "constructor-0"}
