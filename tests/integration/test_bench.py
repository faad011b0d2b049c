"""`bench` measures the real processes; the figures are plausible, whatever the machine's speed."""

from __future__ import annotations

import json
from pathlib import Path

from real_job import job_values, run_cli, write_config


def test_figures_by_name(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    done = run_cli("bench", config, "--steps", 5, "--warmup", 1, "--mesh", "dp=2,cp=2", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["job"], figures["mesh"], figures["steps"]) == ("tiny", "dp=2,cp=2", 5)
    # 8 sequences a step on 2 dp ranks: 4 microbatches a rank, on 4 ranks.
    assert figures["batches_per_s"] / figures["steps_per_s"] == 16
    assert figures["tokens_per_s"] / figures["steps_per_s"] <= 8 * 256
    assert 0 <= figures["stall_share"] <= 1
    assert set(figures["memory_bytes"]) == {"planner-0", "loader-0", "loader-1", "constructor-0"}
    assert {"plan", "probe_wait", "fetch", "build"} <= set(figures["trace_s_per_step"])


def test_text_for_people(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    done = run_cli("bench", config, "--steps", 2, "--warmup", 0)
    assert done.returncode == 0, done.stderr
    for word in ("tiny on dp=1, 2 steps", "tokens", "ranks waited", "memory (PSS)", "packing_efficiency"):
        assert word in done.stdout
