"""Decode workers of a real job are killed and stopped: at most the clip in hand is lost, nothing waits."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import pytest

from reading import Reader, assert_equal
from real_job import Served, assert_gone, job_values, run_cli, serve, words, write_config

STEPS = 16
CLIPS = 40


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 clips of 12 frames, 56 x 84, in a JSON lines source."""
    folder = tmp_path_factory.mktemp("clips")
    rows = []
    for number in range(CLIPS):
        (folder / f"{number}.mp4").write_bytes(_clip(number))
        rows.append(json.dumps({"text": words(number, 6, seed=3), "file": f"{number}.mp4"}))
    (folder / "clips.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def _clip(number: int) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=10, options={"crf": "30", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 84, 56, "yuv420p"
        for frame in range(12):
            picture = np.full((56, 84, 3), (17 * frame + 5 * number) % 256, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode(None))
    return file.getvalue()


def _config(data: Path, clips: Path, folder: Path, **loader: Any) -> Path:
    values = job_values(data, loader={"count": 1, "workers": 1, **loader})
    values["sources"]["clips"] = {
        "format": "jsonl",
        "path": f"{clips}/clips.jsonl",
        "text": "text",
        "video": {"field": "file", "frames": 4},
        "shuffle": {"block": 2048},
        "extent": 512,
    }
    values["mixture"]["schedule"] = [{"step": 0, "notes": 0.5, "clips": 0.5}]
    del values["sources"]["pages"], values["sources"]["photos"]
    return write_config(folder / "job.yaml", values)


def _workers(served: Served) -> list[psutil.Process]:
    found = []
    for child in served.family():
        try:
            if any("worker_main" in word for word in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def _quarantined(config: Path) -> list[dict[str, Any]]:
    listed = run_cli("quarantine", config, "--json")
    assert listed.returncode == 0, listed.stderr
    samples: list[dict[str, Any]] = json.loads(listed.stdout)
    return samples


def test_killed_workers_cost_no_clip(data: Path, clips: Path, tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    with serve(_config(data, clips, tmp_path / "calm")) as served, Reader(served.address) as expected:
        expected.allow(STEPS)
        expected.wait()
    config = _config(data, clips, tmp_path)
    killed = []
    with serve(config) as served, Reader(served.address) as reader:
        for _ in range(STEPS // 4):
            reader.allow(4)
            reader.wait(len(reader.steps) + 1)
            for worker in _workers(served):
                worker.kill()
                killed.append(worker.pid)
            reader.wait()
    assert len(set(killed)) > 1  # others took their place
    assert_equal(reader.steps, expected.steps)
    assert _quarantined(config) == []


def test_a_stopped_worker_costs_one_clip_and_holds_up_nothing(
    data: Path, clips: Path, tmp_path: Path
) -> None:
    config = _config(data, clips, tmp_path, decode_timeout=5)
    with serve(config) as served, Reader(served.address) as reader:
        reader.allow(2)
        reader.wait()
        stopped = _workers(served)
        assert stopped
        for worker in stopped:
            worker.send_signal(signal.SIGSTOP)
        reader.allow(STEPS)
        reader.wait()
        assert_gone(stopped)
    lost = _quarantined(config)
    assert {entry["reason"] for entry in lost} == {"decode_timeout"}
    # The clip in hand, in every epoch: as long as the loader lives, it is not tried again.
    assert len({entry["row"] for entry in lost}) <= len(stopped)
