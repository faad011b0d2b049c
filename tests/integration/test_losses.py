"""Feedback of a trainer: losses by source are equal on every mesh, weights made of them outlive kills."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from dataloader_client import Coords, DataServiceLoader, Mesh, MixtureError
from dataloader_client.adaptive import Bounds, by_excess_loss
from dataloader_client.losses import FloatArray, losses_by_source
from reading import assert_equal, fingerprint, take_step
from real_job import job_values, run_cli, serve, write_config, write_data

DECLARED = {"notes": 0.4, "pages": 0.4, "photos": 0.2}
STEPS = 3


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", job_values(write_data(tmp_path / "data")))


def read(address: str, mesh: Mesh) -> list[tuple[FloatArray, float]]:
    """Of each step, sums over all ranks of what each token would lose, and the step's sum of weights."""
    found = []
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(DataServiceLoader(address, mesh=mesh, coords=Coords(dp=dp, cp=cp)))
            for dp in range(mesh.dp)
            for cp in range(mesh.cp)
        ]
        for _ in range(STEPS):
            batches = [batch for loader in loaders for batch in take_step(loader)]
            sums = [losses_by_source(batch, batch.numpy["labels"] % 7 + 0.5) for batch in batches]
            assert len({batch.manifest.sources for batch in batches}) == 1
            found.append((np.sum(sums, axis=0), batches[0].loss_weight_sum))
    return found


def test_sums_are_the_same_on_every_mesh(config: Path) -> None:
    seen = []
    for mesh in (Mesh(), Mesh(dp=2), Mesh(cp=2)):
        for path in (config.parent / ".dataloader-svc").glob("*.db*"):
            path.unlink()
        with serve(config) as served:
            seen.append(read(served.address, mesh))
    for step in zip(*seen, strict=True):
        (first, weight), *others = step
        assert first[:, 1].sum() == pytest.approx(weight)
        assert (first[:, 0] > 0).sum() >= 2, "a step of one source proves nothing"
        for sums, total in others:
            np.testing.assert_allclose(sums, first)
            assert total == pytest.approx(weight)


def test_weights_made_of_losses_outlive_a_kill_of_all_roles(config: Path) -> None:
    bounds = Bounds(max_change=0.1, max_ratio=2)
    losses, references = {"notes": 2.0, "pages": 2.0, "photos": 9.0}, dict.fromkeys(DECLARED, 2.0)
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        take_step(loader)
        weights = by_excess_loss(DECLARED, losses, references, declared=DECLARED, bounds=bounds)
        assert weights["photos"] == pytest.approx(0.3)
        made = loader.set_mixture(weights)
        for process in served.family():
            process.send_signal(signal.SIGKILL)
        while loader.state_dict()["step"] <= made.at_step:
            take_step(loader)
        assert made.weights == pytest.approx(weights)
        (carried,) = loader.state_dict()["service"]["mixture"]
        assert (carried["at_step"], carried["weights"]) == (made.at_step, made.weights)
        shown = run_cli("mixture", served.address, "show")
        assert f"photos=0.3, from step {made.at_step} on" in shown.stdout


def test_an_older_checkpoint_replays_what_was_changed_and_says_what_is_planned(config: Path) -> None:
    with serve(config) as served:
        with DataServiceLoader(served.address, mesh=Mesh()) as loader:
            take_step(loader)
            older = loader.state_dict()
            made = loader.set_mixture({"notes": 0.2, "pages": 0.4, "photos": 0.4})
            seen = {}
            while loader.state_dict()["step"] <= made.at_step + 2:
                batches = take_step(loader)
                seen[batches[0].step] = fingerprint(batches)
        with DataServiceLoader(served.address, mesh=Mesh()) as loader:
            loader.load_state_dict(older)
            first = take_step(loader)
            assert first[0].step == 1
            assert_equal({1: fingerprint(first)}, seen)
            # The trainer decides anew, and differently, for the step for which it did before.
            with pytest.raises(
                MixtureError, match=f"step {made.at_step} is already planned: the first .* is"
            ):
                loader.set_mixture({"notes": 1.0}, at_step=made.at_step)
            for step in range(2, max(seen) + 1):
                assert_equal({step: fingerprint(take_step(loader))}, seen)
            (carried,) = loader.state_dict()["service"]["mixture"]
            assert (carried["at_step"], carried["weights"]) == (made.at_step, made.weights)
            again = loader.set_mixture({"notes": 1.0})
            assert again.at_step > made.at_step
            while loader.state_dict()["step"] <= again.at_step:
                take_step(loader)
            assert loader.state_dict()["service"]["mixture"][-1]["weights"] == again.weights
