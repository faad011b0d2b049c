"""Whoever of constructor, service and trainers is killed: what is mapped stays right, and nothing is left."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from dataloader_client import Coords, DataServiceLoader, Mesh
from holding import status, trainer
from reading import fingerprint, take_step
from real_job import (
    COMMAND,
    RUN_MARK,
    STOP_S,
    environment,
    job_values,
    named_segments,
    new_segments,
    serve,
    write_config,
)


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", job_values(data))


def wait_leases(address: str, count: int) -> None:
    """Ask until no more are left; each answer takes its time, and the deadline only a hang reaches."""
    until = time.monotonic() + STOP_S
    while (left := status(address).leases) > count:
        assert time.monotonic() < until, left


def holders() -> dict[int, set[str]]:
    """Processes of this test run that have memory of batches open or mapped."""
    found: dict[int, set[str]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_MARK) != os.environ[RUN_MARK] and process.pid != os.getpid():
                continue
            maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            lines = {line for line in maps if "memfd:dataloader-batch" in line}
            if lines:
                found[process.pid] = lines
    return found


def test_a_trainer_that_is_killed_gives_all_back(config: Path) -> None:
    before = named_segments()
    with serve(config) as served:
        with trainer(served.address) as process:
            assert status(served.address).leases >= 3
            assert process.pid in holders()
            process.kill()
            process.wait()
            wait_leases(served.address, 0)
        assert status(served.address).lent_bytes == 0
        with DataServiceLoader(served.address, mesh=Mesh()) as loader:
            assert fingerprint(take_step(loader))
        assert not new_segments(before)


def test_a_constructor_that_is_killed_takes_nothing_from_who_holds(config: Path) -> None:
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        held = [take_step(loader) for _ in range(6)]
        prints = [fingerprint(batches) for batches in held]
        assert os.getpid() in holders()
        for number in range(2):
            served.roles()["constructor-0"].kill()
            for _ in range(6):  # built anew, in other memory
                take_step(loader)
            served.wait_said("constructor-0 is back", times=number + 1)
            assert [fingerprint(batches) for batches in held] == prints
        assert [fingerprint(loader.read(step)) for step in range(6)] == prints
        assert status(served.address).lent_total > 0  # by the third life


def test_killed_as_it_lends(config: Path, tmp_path: Path) -> None:
    """Between the descriptor and the answer: the read is repeated, and nothing of the first try is kept."""
    marks = tmp_path / "fired"
    marks.mkdir()
    faults = {"DATALOADER_FAULT": "constructor.lent:kill:3", "DATALOADER_FAULT_DIR": str(marks)}
    with serve(config, **faults) as served:
        with DataServiceLoader(served.address, mesh=Mesh()) as loader:
            found = [fingerprint(take_step(loader)) for _ in range(20)]
            assert [fingerprint(loader.read(step)) for step in range(20)] == found
        wait_leases(served.address, 0)
    assert [path.name for path in marks.iterdir()] == ["constructor.lent_kill_3"]


def test_of_a_service_that_is_killed_nothing_is_left(config: Path) -> None:
    before = named_segments()
    with serve(config) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        held = [take_step(loader) for _ in range(6)]
        prints = [fingerprint(batches) for batches in held]
        family = served.family()
        for process in [psutil.Process(served.process.pid), *family]:
            process.kill()
        served.process.wait()
        psutil.wait_procs(family, STOP_S)
        assert [fingerprint(batches) for batches in held] == prints
        assert set(holders()) == {os.getpid()}  # what this process holds, and no more
        loader.close()
        del held
        gc.collect()  # what stands in a cycle is given back with it
        assert holders() == {}
    assert not new_segments(before)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting takes a privileged user")
def test_a_small_dev_shm_is_no_limit(config: Path, tmp_path: Path) -> None:
    """In a container it has 64 MB; here it has nearly nothing, for the service and its roles alone."""
    script = tmp_path / "serve"
    script.write_text(
        "#!/bin/sh\nset -e\nmount -t tmpfs -o size=4k tmpfs /dev/shm\ndf -k /dev/shm | tail -1 >&2\nexec "
        + " ".join([*COMMAND, "serve", str(config), "--address", "127.0.0.1:0", "--json"])
        + f" --run-dir {tmp_path}/run\n"
    )
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            pytest.skip(f"no mount namespace here: {process.stderr.read()}")
        address = line.split('"address": "')[1].split('"')[0]
        with DataServiceLoader(address, mesh=Mesh()) as loader:
            held = [take_step(loader) for _ in range(8)]
            assert status(address).lent_bytes > 4096
            assert os.getpid() in holders()
            del held
    finally:
        process.terminate()
        process.wait(STOP_S)
        process.stdout.close()
        process.stderr.close()


def test_ranks_of_one_host_map_one_copy(config: Path) -> None:
    mesh = Mesh(tp=4)
    with serve(config) as served, contextlib.ExitStack() as stack:
        loaders = [
            stack.enter_context(DataServiceLoader(served.address, mesh=mesh, coords=Coords(tp=rank)))
            for rank in range(4)
        ]
        for _ in range(8):
            held = [take_step(loader) for loader in loaders]
        assert len({repr(fingerprint(batches)) for batches in held}) == 1
        mapped = {line.split(maxsplit=5)[4] for line in holders()[os.getpid()]}  # inodes
        arrays = [batches[0].numpy["input_ids"] for batches in held]
        assert len({array.ctypes.data for array in arrays}) == 4
        assert len({_inode(array.ctypes.data) for array in arrays}) == 1
        assert _inode(arrays[0].ctypes.data) in mapped


def _inode(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[4]
    raise AssertionError(hex(address))
