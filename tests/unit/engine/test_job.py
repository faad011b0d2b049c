"""A job's own ways of waiting and ending. Processes: integration/test_serve.py, faults/."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dataloader_svc.config.load import load_config
from dataloader_svc.engine import job as job_module
from dataloader_svc.engine.job import Job
from dataloader_svc.engine.spec import job_spec
from real_job import job_values, write_config

BOUND_S = 60.0


@pytest.fixture
def job(tmp_path: Path) -> Job:
    config = write_config(tmp_path / "job.yaml", job_values(tmp_path))
    return Job(job_spec(load_config(config), tmp_path, "127.0.0.1:0"))


def test_interrupted_before_it_begins(job: Job) -> None:
    job.interrupt()
    with pytest.raises(KeyboardInterrupt):
        job.__enter__()
    assert job.roles() == {}
    job.stop()


def test_interrupted_in_a_wait(job: Job) -> None:
    async def nothing_happens() -> None:
        interrupting.start()
        await never

    job._thread.start()
    never = job._loop.create_future()
    interrupting = threading.Timer(0.01, job.interrupt)
    with pytest.raises(KeyboardInterrupt):
        job._call(nothing_happens())
    interrupting.join()
    job.stop()
    assert never.cancelled()


def test_a_loop_that_hangs_is_given_up_and_named(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_module, "CLOSE_S", 0.05)
    monkeypatch.setattr(job_module, "END_S", 0.05)
    end = threading.Event()
    job._thread.start()
    job._loop.call_soon_threadsafe(end.wait)
    job.stop()
    assert "the job has not ended in 0.05 s; it is at\n" in caplog.text
    assert "wait" in caplog.text
    end.set()
    job._thread.join(BOUND_S)
    assert not job._thread.is_alive()
    job._loop.close()
    job._bell.close()
