"""`DataServiceLoader.local`: a service that comes and goes with a script, also with one that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest

from dataloader_client import DataServiceLoader, LocalService, LocalServiceError, MeshMismatchError
from real_job import STOP_S, assert_gone, environment, job_values, write_config


@pytest.fixture
def config(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job, in a folder whose `tmp` is where temporary files go."""
    (tmp_path / "tmp").mkdir()
    for name, value in environment(TMPDIR=str(tmp_path / "tmp")).items():
        monkeypatch.setenv(name, value)
    return write_config(tmp_path / "job.yaml", job_values(data))


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@contextlib.contextmanager
def script(config: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A script that makes `loader`, reads a batch, prints the service's pid, and goes on with `code`."""
    source = f"""
    import os, signal, sys
    from dataloader_client import DataServiceLoader
    loader = DataServiceLoader.local({str(config)!r})
    next(loader)
    print(loader._running.service.pid, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source) + textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line.strip()


def test_serves_this_process_and_leaves_nothing(config: Path, tmp_path: Path) -> None:
    with DataServiceLoader.local(config, prefetch=1) as loader:
        processes = family(loader._running.service.pid)
        assert len(processes) >= 5  # serve, planner, two loaders, constructor
        steps = [batch.step for batch in islice(loader, 17)]
        state = loader.state_dict()
    assert steps == [0] * 8 + [1] * 8 + [2]
    assert_gone(processes)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / ".dataloader-svc").exists()  # the job's own store was not touched
    with DataServiceLoader.local(str(config), state=state) as loader:  # another service, its store empty
        assert (next(loader).step, next(loader).microbatch) == (2, 2)


def test_a_store_may_be_kept(config: Path, tmp_path: Path) -> None:
    with DataServiceLoader.local(config, store=f"sqlite:///{tmp_path}/kept.db") as loader:
        next(loader)
    assert (tmp_path / "kept.db").exists()


def test_nobody_else_reads_from_it(config: Path) -> None:
    from dataloader_client import AccessDeniedError

    with LocalService(config) as service:
        with pytest.raises(AccessDeniedError):
            DataServiceLoader(service.address)
        with DataServiceLoader(service.address, token=service.token) as loader:
            assert next(loader).step == 0


def test_a_dropped_loader_takes_its_service_along(config: Path) -> None:
    loader = DataServiceLoader.local(config)
    processes = family(loader._running.service.pid)
    del loader
    assert_gone(processes)


@pytest.mark.parametrize(
    ("code", "ends_with"),
    [
        ("input(); raise ValueError('a mistake')", 1),
        ("input(); sys.exit(3)", 3),
        ("input(); os._exit(4)", 4),
        ("input(); os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("input(); os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ],
)
def test_it_ends_with_the_script(config: Path, tmp_path: Path, code: str, ends_with: int) -> None:
    with script(config, code) as process:
        processes = family(int(said(process)))
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(STOP_S) == ends_with
        assert_gone(processes)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_kill_9_of_the_script_leaves_no_orphan_though_its_forked_child_lives(
    config: Path, tmp_path: Path
) -> None:
    code = """
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    signal.pause()
    """
    with script(config, code) as process:
        processes = family(int(said(process)))
        child = psutil.Process(int(said(process)))
        process.kill()
        assert_gone(processes)
        assert child.is_running()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_an_interrupt_of_the_kernel_ends_the_cell_and_not_the_service(config: Path) -> None:
    code = """
    try:
        print("waiting", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("interrupted at", next(loader).microbatch, flush=True)
    """
    with script(config, code) as process:
        processes = family(int(said(process)))
        assert said(process) == "waiting"
        os.killpg(process.pid, signal.SIGINT)  # as jupyter does: to the whole group
        assert said(process) == "interrupted at 1"
        assert process.wait(STOP_S) == 0
        assert_gone(processes)


def test_a_service_that_is_killed_is_told_at_once(config: Path) -> None:
    with DataServiceLoader.local(config, prefetch=1, timeout_s=3_600) as loader:
        next(loader)
        processes = family(loader._running.service.pid)
        processes[0].kill()
        with pytest.raises(LocalServiceError, match=r"has ended: make another.*killed by signal 9"):
            list(loader)
        with pytest.raises(LocalServiceError):
            next(loader)
        assert loader.state_dict()["step"] >= 0
        assert_gone(processes)


def test_a_mistake_in_the_configuration_comes_in_the_services_words(config: Path) -> None:
    config.write_text(config.read_text().replace("sequence_length", "sequence_lenght"))
    with pytest.raises(LocalServiceError, match="exit code 2") as caught:
        DataServiceLoader.local(config)
    assert "sequence_length" in str(caught.value)
    assert str(config) in str(caught.value)


def test_the_server_extra_is_asked_for(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "click.py").write_text("raise ModuleNotFoundError('no click', name='click')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/absent{os.pathsep}{os.environ['PYTHONPATH']}")
    with pytest.raises(LocalServiceError, match=r"click is missing.*pip install 'dataloader-svc\[server\]'"):
        DataServiceLoader.local(config)


def test_one_that_is_not_ready_in_time_is_stopped(config: Path, tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(LocalServiceError, match="not ready after 0 s"):
        DataServiceLoader.local(config, start_timeout_s=0)
    assert set(psutil.Process().children()) == before
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_loader_that_is_refused_stops_it(config: Path) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(MeshMismatchError):
        DataServiceLoader.local(config, mesh={"dp": 3}, rank=0)  # 8 sequences are no 3 ranks'
    assert set(psutil.Process().children()) == before


def test_ranks_share_one(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MeshMismatchError, match="start one for all"):
        DataServiceLoader.local(config)


def test_a_service_of_another_parent_does_not_start(config: Path) -> None:
    command = [sys.executable, "-m", "dataloader_svc", "serve", str(config), "--embedded-in", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=STOP_S, check=False)
    assert done.returncode == 6
    assert "is not the parent" in done.stderr
