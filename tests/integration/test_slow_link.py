"""Real services behind a slow link: `auto` sends fewer bytes there, and the same data arrives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dataloader_client import Batch, DataServiceLoader, Mesh
from dataloader_client.codecs import installed
from real_job import Served, environment, job_values, run_cli, serve, write_config
from throttle import slow_link

STEPS = 6
SLOW = 2e6
"""Bytes a second."""


def service(data: Path, folder: Path, compression: str) -> Path:
    folder.mkdir()
    values = job_values(
        data,
        sequence_length=2048,
        wire={"compression": compression},
        constructor={"shared_memory": False},  # else it would go around the link
    )
    return write_config(folder / "job.yaml", values)


def read(address: str, expected: list[list[Batch]] | None = None) -> list[list[Batch]]:
    """The first steps; each equal to that of `expected`."""
    steps = []
    with DataServiceLoader(address, mesh=Mesh()) as loader:
        for step in range(STEPS):
            steps.append(loader.read(step))
    for mine, theirs in zip(steps, expected or steps, strict=True):
        for batch, other in zip(mine, theirs, strict=True):
            assert batch.numpy.keys() == other.numpy.keys()
            for name, array in batch.numpy.items():
                assert np.array_equal(array, other.numpy[name]), name
    return steps


def through(served: Served, bytes_per_s: float, expected: list[list[Batch]]) -> int:
    """Bytes that the steps took."""
    with slow_link(served.address, bytes_per_s) as link:
        read(link.address, expected)
        return link.num_bytes


@pytest.mark.skipif("zstd" not in installed(), reason="zstandard is not installed")
def test_bytes_on_a_slow_link(data: Path, tmp_path: Path) -> None:
    with serve(service(data, tmp_path / "off", "off")) as served:
        expected = read(served.address)
        plain = through(served, SLOW, expected)
    with serve(service(data, tmp_path / "auto", "auto")) as served:
        packed = through(served, SLOW, expected)
    payload = sum(array.nbytes for step in expected for batch in step for array in batch.numpy.values())
    assert plain > payload
    assert packed < 0.75 * plain, "after the first frames, by which the link is measured"


def test_a_codec_that_is_not_there_is_named(data: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "zstandard.py").write_text("raise ImportError\n")
    config = service(data, tmp_path / "zstd", "zstd")
    done = run_cli("check", config, PYTHONPATH=f"{hidden}:{environment()['PYTHONPATH']}")
    assert done.returncode == 1
    assert (
        "wire.compression: zstd needs the package zstandard: pip install 'dataloader-svc"
        in done.stdout + done.stderr
    )
