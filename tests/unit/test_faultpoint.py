"""Fault points do nothing by default, and in a real process exactly what they were asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dataloader_svc.faultpoint import SLOW_S

SCRIPT = "from dataloader_svc.faultpoint import point\nfor i in range(5): print(i, flush=True); point('a.b')"


def run(fault: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "DATALOADER_FAULT": fault, "DATALOADER_FAULT_DIR": str(folder)}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environ)


def test_off_by_default(tmp_path: Path) -> None:
    assert run("", tmp_path).stdout.split() == list("01234")


def test_kill_at_the_third_time_and_only_once(tmp_path: Path) -> None:
    first = run("a.b:kill:3", tmp_path)
    assert first.returncode == -signal.SIGKILL
    assert first.stdout.split() == list("012")
    assert [mark.name for mark in tmp_path.iterdir()] == ["a.b_kill_3"]
    assert run("a.b:kill:3", tmp_path).returncode == 0


def test_slow_from_the_fourth_time_on(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run("a.b:slow:4", tmp_path)
    assert time.monotonic() - began >= 2 * SLOW_S, "the fourth and the fifth"
    assert done.stdout.split() == list("01234")
    assert [mark.name for mark in tmp_path.iterdir()] == ["a.b_slow_4"]


def test_raise(tmp_path: Path) -> None:
    done = run("other:kill:1,a.b:raise:1", tmp_path)
    assert "fault injected at a.b:raise:1" in done.stderr
