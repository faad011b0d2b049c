"""`split="eval"` on a real service: each sample once on every mesh, as often as asked; training unmoved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataloader_client import Batch, DataServiceLoader, Mesh
from dataloader_client.errors import DataServiceError, DataStoppedError
from reading import Fingerprint, Reader, fingerprint
from real_job import Served, job_values, run_cli, serve, write_config

STEPS = 30
Name = tuple[str, int, int]
"""Of a piece: source, position, first token."""


def values_of(data: Path) -> dict[str, Any]:
    """The tiny job, evaluated on a third of its notes and on photos of another source; 4 sequences a step."""
    values = job_values(data)
    values["sources"]["notes"]["extent"] = 256
    photos = {
        name: values["sources"]["photos"][name] for name in ("format", "path", "text", "image", "extent")
    }
    values["evaluation"] = {
        "held_out": {"notes": 0.3},
        "sources": {"album": photos},
        "global_batch": {"sequences": 4},
    }
    return values


@pytest.fixture(scope="module")
def config(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("evaluation") / "job.yaml", values_of(data))


@pytest.fixture(scope="module")
def served(config: Path) -> Iterator[Served]:
    with serve(config) as served:
        yield served


def names(batches: list[Batch]) -> list[Name]:
    return [(span.source, span.position, span.start) for b in batches for span in b.manifest.spans()]


def evaluated(address: str, mesh: Mesh) -> dict[int, list[list[Batch]]]:
    """By step, the microbatches of each dp rank, read one rank after the other."""
    steps: dict[int, list[list[Batch]]] = {}
    for rank in range(mesh.world_size):
        with DataServiceLoader(address, split="eval", mesh=mesh, rank=rank) as loader:
            for batch in loader:
                ranks = steps.setdefault(batch.step, [[] for _ in range(mesh.dp)])
                ranks[rank].append(batch)
    return steps


def test_each_sample_once_and_steps_alike_on_every_mesh(served: Served) -> None:
    found = {dp: evaluated(served.address, Mesh(dp=dp)) for dp in (1, 2, 4)}
    alone = found[1]
    assert list(alone) == list(range(len(alone)))
    assert len(alone) > 3
    for dp, steps in found.items():
        assert list(steps) == list(alone)
        for step, ranks in steps.items():
            assert {len(batches) for batches in ranks} == {4 // dp}, (
                "ranks take as many steps and microbatches"
            )
            assert sorted(names([b for batches in ranks for b in batches])) == sorted(names(alone[step][0]))
            assert {b.digest for batches in ranks for b in batches} == {alone[step][0][0].digest}
            weight = sum(float(b.numpy["loss_weight"].sum()) for batches in ranks for b in batches)
            assert weight == pytest.approx(alone[step][0][0].loss_weight_sum)
    pieces = [name for ranks in alone.values() for name in names(ranks[0])]
    samples = {(source, position) for source, position, _ in pieces}
    assert len(pieces) == len(set(pieces))
    for source in ("album", "notes.eval"):
        positions = {position for name, position in samples if name == source}
        assert positions == set(range(len(positions))), "each position once, none left out"
    assert len({position for source, position in samples if source == "album"}) == 48


def test_a_ragged_last_step_is_filled_with_what_weighs_nothing(served: Served) -> None:
    steps = evaluated(served.address, Mesh(dp=4))
    last = steps[max(steps)]
    empty = [batches for batches in last if not names(batches)]
    assert empty, "the last step has less than a sequence for each rank"
    assert all(not batch.numpy["loss_weight"].any() for batches in empty for batch in batches)
    assert all(batch.loss_weight_sum > 0 for batches in empty for batch in batches)  # of all ranks


def test_held_out_is_what_training_does_not_read(served: Served) -> None:
    with DataServiceLoader(served.address, split="eval") as loader:
        held = {document(batch, span) for batch in loader for span in batch.manifest.spans()}
    with DataServiceLoader(served.address) as loader:
        read: set[tuple[int, ...]] = set()
        for batch in loader:
            read |= {
                document(batch, span) for span in batch.manifest.spans() if span.source in ("notes", "pages")
            }
            if batch.step == STEPS:
                break
    assert len(held) > 80
    assert not held & read


def document(batch: Batch, span: Any) -> tuple[int, ...]:
    return tuple(batch.numpy["input_ids"][span.offset : span.offset + span.length].tolist())


def steps_of(loader: DataServiceLoader) -> dict[int, Fingerprint]:
    found: dict[int, list[Batch]] = {}
    for batch in loader:
        found.setdefault(batch.step, []).append(batch)
    return {step: fingerprint(batches) for step, batches in found.items()}


def test_again_and_again_beside_training_that_does_not_notice(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", values_of(data))
    with serve(config) as served, Reader(served.address) as training:
        training.allow(STEPS)
        training.wait()
    undisturbed = training
    (tmp_path / "beside").mkdir()
    config = write_config(tmp_path / "beside" / "job.yaml", values_of(data))
    with (
        serve(config) as served,
        Reader(served.address) as training,
        DataServiceLoader(served.address, split="eval") as loader,
    ):
        training.allow(STEPS // 3)
        first = steps_of(loader)
        training.wait()
        assert next(iter(loader)).step == 0
        training.allow(STEPS // 3)
        assert [next(loader).step for _ in range(6)] == [0, 0, 0, 1, 1, 1]  # and is left in the middle
        training.wait()
        training.allow(STEPS // 3)
        assert steps_of(loader) == first == steps_of(loader)
        training.wait()
    assert training.steps == undisturbed.steps
    assert training.states == undisturbed.states


def test_a_place_in_it_can_be_kept(served: Served) -> None:
    with DataServiceLoader(served.address, split="eval") as loader:
        for batch in loader:
            if batch.step == 2 and batch.is_last_microbatch:
                break
        state = loader.state_dict()
    with DataServiceLoader(served.address, split="eval", state=state) as loader:
        assert next(iter(loader)).step == 3


def test_it_changes_nothing(served: Served) -> None:
    with DataServiceLoader(served.address, split="eval") as loader:
        next(loader)
        for change in (loader.commit, lambda: loader.skip(3, 4), lambda: loader.set_mixture({"album": 1})):
            with pytest.raises(DataServiceError, match="a loader of evaluation changes nothing"):
                change()


def test_a_job_without_evaluation_says_so(data: Path, tmp_path: Path, served: Served) -> None:
    with pytest.raises(DataStoppedError, match="no split 'test'; besides training: eval"):
        DataServiceLoader(served.address, split="test")  # type: ignore[arg-type]
    config = write_config(tmp_path / "job.yaml", job_values(data))
    with (
        serve(config) as without,
        pytest.raises(DataStoppedError, match="no split 'eval': its configuration says nothing under `eval"),
    ):
        DataServiceLoader(without.address, split="eval")


def test_check_reads_what_is_evaluated_on(data: Path, tmp_path: Path) -> None:
    values = values_of(data)
    values["evaluation"]["sources"]["album"]["path"] = f"{data}/nowhere/*.tar"
    values["evaluation"]["held_out"] = {"notes": 0.3, "pages": 1e-9}
    config = write_config(tmp_path / "job.yaml", values)
    done = run_cli("check", config)
    assert done.returncode == 1
    assert "evaluation.sources.album.path: " in done.stdout
    values["evaluation"]["sources"]["album"]["path"] = f"{data}/photos/*.tar"
    done = run_cli("check", write_config(config, values))
    assert "evaluation.held_out.pages: 1e-09 of its extents is none of them" in done.stdout
    done = run_cli("serve", config)
    assert done.returncode == 2
    assert "evaluation.held_out.pages: " in done.stderr
