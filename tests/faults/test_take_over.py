"""A service hands its job over to another while a trainer reads: whoever dies, each sample comes once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reading import Fingerprint, Reader, assert_equal
from real_job import Served, assert_gone, job_values, run_cli, serve, starting, write_config

ROUND = 30


@pytest.fixture(scope="module")
def calm(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Fingerprint]:
    """What a job delivers that nobody disturbs."""
    config = write_config(tmp_path_factory.mktemp("calm") / "job.yaml", job_values(data))
    with serve(config) as served, Reader(served.address) as reader:
        reader.allow(3 * ROUND)
        reader.wait()
    return reader.steps


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", job_values(data))


def successor(config: Path, **fault: str) -> Iterator[Served]:
    """Another `serve` of the same job, in a folder of its own."""
    return starting(config, "--take-over", "--run-dir", config.parent / "next", **fault)


def test_the_job_goes_on_under_another_service(config: Path, calm: dict[int, Fingerprint]) -> None:
    with serve(config) as old, Reader(old.address) as reader:
        family = old.family()
        reader.allow(ROUND)
        reader.wait(5)
        with successor(config) as new:
            reader.allow(ROUND)
            new.wait_ready()
            assert new.address == old.address
            assert old.process.wait(30) == 0
            assert f"handed over to process {new.process.pid} on " in old.stderr
            assert_gone(family)
            reader.allow(ROUND)
            reader.wait()
            with successor(config) as third:  # and once more
                third.wait_ready()
                assert new.process.wait(30) == 0
                reader.wait()
                assert third.stop() == 0, third.stderr
    assert_equal(reader.steps, calm)


@pytest.mark.parametrize("point", ["takeover.asked", "serving.taken", "takeover.taken"])
def test_the_old_one_goes_on_where_its_successor_dies(
    config: Path, calm: dict[int, Fingerprint], point: str
) -> None:
    with serve(config) as old, Reader(old.address) as reader:
        reader.allow(ROUND)
        reader.wait(5)
        with successor(config, DATALOADER_FAULT=f"{point}:kill:1") as new:
            assert new.process.wait(60) == -9
        if point != "takeover.asked":
            old.wait_said("ended before it served the job; going on")
        reader.allow(ROUND)
        reader.wait()
        assert old.process.poll() is None
    assert_equal(reader.steps, calm)


def test_the_old_one_goes_on_where_its_successor_dies_while_it_starts(
    config: Path, calm: dict[int, Fingerprint]
) -> None:
    with serve(config) as old, Reader(old.address) as reader:
        reader.allow(ROUND)
        reader.wait(5)
        with successor(config) as new:
            old.wait_said("handing the job over")
            new.process.kill()
            reader.allow(ROUND)
            reader.wait()
        assert old.process.poll() is None
    assert_equal(reader.steps, calm)


@pytest.mark.parametrize("point", ["takeover.stopped", "takeover.given_up"])
def test_the_new_one_serves_where_the_old_one_dies(
    config: Path, calm: dict[int, Fingerprint], point: str
) -> None:
    with starting(config, DATALOADER_FAULT=f"{point}:kill:1") as old:
        old.wait_ready()
        with Reader(old.address) as reader:
            reader.allow(ROUND)
            reader.wait(5)
            with successor(config) as new:
                new.wait_ready()
                assert old.process.wait(30) == -9
                reader.allow(ROUND)
                reader.wait()
                assert new.stop() == 0, new.stderr
    assert_equal(reader.steps, calm)


def test_a_job_that_would_be_another_is_not_taken_over(config: Path, data: Path) -> None:
    other = config.with_name("other.yaml")
    write_config(other, job_values(data, seed=6, global_batch={"sequences": 4}))
    with serve(config) as old, Reader(old.address) as reader:
        refused = run_cli("serve", other, "--take-over", "--json")
        assert refused.returncode == 4
        assert "job 'tiny' can't be taken over: its configuration would make other steps" in refused.stderr
        assert "seed changed" in refused.stderr
        reader.allow(ROUND)
        reader.wait()
        old.wait_said("not handed over to process ")


def test_with_nobody_to_take_it_from_it_just_serves(config: Path) -> None:
    with serve(config, "--take-over") as served, Reader(served.address) as reader:
        reader.allow(3)
        reader.wait()
