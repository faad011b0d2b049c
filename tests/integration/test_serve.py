"""`serve` as a user and an operating system treat it: addresses, stores, signals, sudden death."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import sqlite3
import threading
from itertools import islice
from pathlib import Path

import pytest

from dataloader_client import DataServiceLoader
from dataloader_client.errors import DataStoppedError, ServiceUnavailableError
from real_job import STOP_S, assert_gone, job_values, run_cli, serve, starting, write_config

ROLES = {"planner-0", "loader-0", "loader-1", "constructor-0"}


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", job_values(data))


def test_serves_and_leaves_nothing(config: Path, tmp_path: Path) -> None:
    with serve(config) as served:
        assert served.job == "tiny"
        assert set(served.pids) == ROLES == set(served.roles())
        with DataServiceLoader(served.address, job="tiny") as loader:
            batch = next(loader)
        assert batch.step == 0
        roles = list(served.roles().values())
        assert served.stop(signal.SIGINT) == 0
    assert_gone(roles)
    assert served.stderr == "stopping\n"
    assert list((tmp_path / "tmp").iterdir()) == []  # temporary files
    assert {path.name for path in (tmp_path / "run" / "logs").iterdir()} == {f"{role}.log" for role in ROLES}
    assert "Traceback" not in "".join(log.read_text() for log in (tmp_path / "run" / "logs").iterdir())


def test_a_person_is_told_address_state_and_logs(config: Path, tmp_path: Path) -> None:
    with starting(config, ready_line=False) as served:
        assert served.process.stdout is not None
        first = served.process.stdout.readline()
        assert served.stop() == 0, served.stderr
        rest = served.process.stdout.read()
    what = "3 sources, 8 sequences of 256 tokens a step"
    assert re.fullmatch(rf"serving tiny at 127\.0\.0\.1:\d+: {what}\n", first)
    assert f"sqlite:///{tmp_path}/.dataloader-svc/tiny.db" in rest
    assert f"{tmp_path}/run/logs" in rest


def test_port_in_use(config: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run_cli("serve", config, "--address", address)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"error: can't listen on {address}: address already in use; choose another with --address HOST:PORT "
        "(port 0: any free one)\n"
    )


@pytest.mark.parametrize("address", ["7077", "127.0.0.1", "127.0.0.1:99999", "no.such.host.invalid:0"])
def test_an_address_that_makes_no_sense(config: Path, address: str) -> None:
    result = run_cli("serve", config, "--address", address)
    assert result.returncode == 2
    assert address in result.stderr
    assert "Traceback" not in result.stderr


def test_a_store_file_that_is_garbage(config: Path, tmp_path: Path) -> None:
    store = tmp_path / "garbage.db"
    store.write_bytes(b"no database" * 1000)
    result = run_cli("serve", config, "--address", "127.0.0.1:0", "--store", f"sqlite:///{store}")
    assert result.returncode == 5
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {store}: ")
    assert "move it away" in line
    assert store.read_bytes() == b"no database" * 1000


def test_the_store_of_another_program(config: Path, tmp_path: Path) -> None:
    store = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(store)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
    before = store.read_bytes()
    result = run_cli("serve", config, "--address", "127.0.0.1:0", "--store", f"sqlite:///{store}")
    assert result.returncode == 5
    assert str(store) in result.stderr
    assert "Traceback" not in result.stderr
    assert store.read_bytes() == before


@pytest.mark.skipif(os.getuid() == 0, reason="root can write everywhere")
def test_a_store_folder_that_can_not_be_written(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    config = write_config(folder / "job.yaml", job_values(data))
    folder.chmod(0o555)
    result = run_cli("serve", config, "--address", "127.0.0.1:0")
    folder.chmod(0o755)
    assert result.returncode == 2
    assert str(folder) in result.stderr


def test_a_store_folder_that_is_a_file(config: Path, tmp_path: Path) -> None:
    (tmp_path / ".dataloader-svc").write_text("in the way")
    result = run_cli("serve", config, "--address", "127.0.0.1:0")
    assert result.returncode == 2
    assert f"can't make {tmp_path}/.dataloader-svc: File exists" in result.stderr


def test_a_second_serve_says_who_has_it_and_a_successor_does_not_wait(config: Path) -> None:
    with serve(config) as first:
        second = run_cli("serve", config, "--address", "127.0.0.1:0")
        assert second.returncode == 5
        assert f"being served already by process {first.process.pid} on " in second.stderr
        assert first.address in second.stderr
        assert first.process.poll() is None
        roles = list(first.roles().values())
        first.process.kill()
        first.process.wait()
        assert_gone(roles)
    with serve(config) as third:
        assert third.address != first.address


def test_sources_that_can_not_be_opened(data: Path, config: Path, tmp_path: Path) -> None:
    """Found before anything is started; when they go bad after that, the trainer is told."""
    values = job_values(data)
    tar = tmp_path / "photos.tar"
    values["sources"]["photos"]["path"] = str(tar)
    write_config(config, values)
    tar.write_bytes(b"\x01" * 4096)
    result = run_cli("serve", config, "--address", "127.0.0.1:0")
    assert result.returncode == 2
    assert f"{config}:" in result.stderr
    assert "sources.photos: source 'photos'" in result.stderr
    assert "photos.tar" in result.stderr
    assert "Traceback" not in result.stderr

    tar.write_bytes(next((data / "photos").glob("*.tar")).read_bytes())
    with (
        serve(config) as served,
        pytest.raises(DataStoppedError, match=r"source 'photos'[\s\S]*photos\.tar"),
    ):
        tar.write_bytes(b"\x01" * 4096)
        with DataServiceLoader(served.address) as loader:
            next(loader)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["reading", "starting planner-0", "loader-0 is ready"])
def test_stopped_while_it_starts(config: Path, tmp_path: Path, number: signal.Signals, moment: str) -> None:
    """Before it is ready: 130, one word, nobody left."""
    with starting(config, options=["--verbose"]) as served:
        served.wait_said(moment)
        family = served.family()
        code = served.stop(number)
        last = served.stderr.splitlines()[-1]
        assert (code, last) in ((130, "interrupted"), (0, "stopping")), served.stderr
        assert_gone(family)
    assert "Traceback" not in served.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_signal_that_another_thread_takes(config: Path) -> None:
    """The kernel gives a signal to any thread, at times to one that is just making another; on two loaded
    cores `serve` slept on then.
    """
    with serve(config) as served:
        main = served.process.pid
        others = {int(task.name) for task in Path(f"/proc/{main}/task").iterdir()} - {main}
        assert ctypes.CDLL(None).tgkill(main, min(others), signal.SIGTERM) == 0  # the first: the engine's
        assert served.process.wait(STOP_S) == 0
        assert served.stderr == "stopping\n"


def test_ends_though_processes_hang(data: Path, tmp_path: Path) -> None:
    """One of each kind, each in a service of its own: killed once its time is over, and nobody left."""
    hanging = ("planner-0", "loader-1", "constructor-0")
    with contextlib.ExitStack() as services:
        jobs = []
        for name in hanging:
            (folder := tmp_path / name).mkdir()
            jobs.append(services.enter_context(starting(write_config(folder / "job.yaml", job_values(data)))))
        families = []
        for name, served in zip(hanging, jobs, strict=True):
            served.wait_ready()
            families.append(served.family())
            os.kill(served.pids[name], signal.SIGSTOP)
        for served in jobs:
            served.process.send_signal(signal.SIGTERM)
        for served, family in zip(jobs, families, strict=True):
            assert served.process.wait(STOP_S) == 0
            assert served.stderr == "stopping\n"
            assert_gone(family)


def test_terminated_while_a_client_reads(config: Path) -> None:
    """The client that waits is told by an error of ours, and the service is gone in seconds."""
    errors = []
    begun = threading.Event()

    def read(address: str) -> None:
        try:
            with DataServiceLoader(address, timeout_s=5.0) as loader:
                for _ in loader:
                    begun.set()
        except ServiceUnavailableError as error:
            errors.append(error)

    with serve(config) as served:
        thread = threading.Thread(target=read, args=(served.address,))
        thread.start()
        assert begun.wait(STOP_S)
        assert served.stop() == 0
        assert served.stderr == "stopping\n"
        thread.join(STOP_S)
        assert not thread.is_alive()
    (error,) = errors
    assert served.address in str(error)


def test_a_mistake_in_a_constructor_is_told_in_words_and_a_trainer_goes_on(config: Path) -> None:
    """The role, what it was at, the exception, the log that has the traceback, and what to do: all true."""
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        for _ in islice(loader, 5):
            pass
        state = loader.state_dict()
        undisturbed = [batch.manifest.columns["span_position"].tolist() for batch in islice(loader, 10)]
    with serve(config, DATALOADER_FAULT="constructor.built:raise:1") as served:
        with (
            DataServiceLoader(served.address, state=state) as loader,
            pytest.raises(DataStoppedError) as stopped,
        ):
            next(iter(loader))
        log = served.run_dir / "logs" / "constructor-0.log"
        assert re.search(
            r"constructor-0 failed to build step \d+: RuntimeError: fault injected at constructor\.built.*"
            rf".*its log, {re.escape(str(log))}, has the traceback.*start the trainers again from their last "
            r"state_dict.*restart `dataloader-svc serve`",
            str(stopped.value),
        )
        assert "Traceback (most recent call last)" in log.read_text()
        with DataServiceLoader(served.address, state=state) as loader:
            found = [batch.manifest.columns["span_position"].tolist() for batch in islice(loader, 10)]
    assert found == undisturbed


def test_killed_the_roles_end_by_themselves_and_the_next_goes_on(config: Path) -> None:
    with serve(config) as served:
        with DataServiceLoader(served.address) as loader:
            first = [next(loader) for _ in range(16)]
            state = loader.state_dict()
        roles = list(served.roles().values())
        served.process.kill()
        served.process.wait()
        assert_gone(roles)
    with serve(config) as served, DataServiceLoader(served.address, state=state) as loader:
        assert next(loader).step == first[-1].step + 1


def test_an_index_that_is_damaged_is_made_anew(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "index"
    config = write_config(tmp_path / "job.yaml", job_values(data, index_cache=str(cache)))
    assert run_cli("check", config).returncode == 0
    files = sorted(cache.glob("*.index"))
    assert len(files) == 7
    good = {path: path.read_bytes() for path in files}
    files[0].write_bytes(b"garbage")
    files[1].write_bytes(good[files[1]][:-5])
    files[2].write_bytes(b"")
    torn = good[files[3]]
    files[3].write_bytes(torn[:40] + bytes([torn[40] ^ 1]) + torn[41:])
    result = run_cli("check", config)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("index made anew: ") == 4
    assert {path: path.read_bytes() for path in files} == good
    shutil.rmtree(cache)
    cache.write_text("no folder")
    result = run_cli("check", config)
    assert result.returncode == 0, result.stdout
    assert "index not cached in" in result.stdout
