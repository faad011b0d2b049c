"""Text: tokenize, pack to 8K, 4 ranks. The service against a torch DataLoader in every rank, in one go.

    make bench

Both read the demo's files with the same tokenizer library; every process shares this machine's cores. Prints
tokens a second, memory of all processes (PSS) and their ratios; asserts nothing of speed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

ROOT = Path(__file__).resolve().parents[2]
RANKS, WORKERS, STEPS, SEQUENCES, REPEATS = 4, 1, 30, 16, 3


def service() -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "dataloader_svc",
        "bench",
        "tests/bench/mixture_text.yaml",
        "--json",
    ]
    command += ["--mesh", f"dp={RANKS}", "--steps", str(STEPS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    return {"tokens_per_s": figures["tokens_per_s"], "pss": sum(figures["memory_bytes"].values())}


def peer() -> dict[str, float]:
    share = STEPS * SEQUENCES // RANKS
    ranks = [
        subprocess.Popen(
            [sys.executable, "tests/bench/peer_text.py", *map(str, (rank, RANKS, WORKERS, share))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(RANKS)
    ]
    rows = [json.loads(process.communicate()[0]) for process in ranks]
    tokens = sum(row["tokens"] for row in rows)
    return {
        "tokens_per_s": tokens / max(row["seconds"] for row in rows),
        "pss": sum(row["pss"] for row in rows),
    }


def test_text_against_a_dataloader_in_every_rank() -> None:
    runs = [(service(), peer()) for _ in range(REPEATS)]
    print()
    for name, unit, scale in (("tokens_per_s", "Mtokens/s", 1e6), ("pss", "MiB", 2**20)):
        ours = statistics.median(run[0][name] for run in runs)
        theirs = statistics.median(run[1][name] for run in runs)
        assert ours > 0
        assert theirs > 0
        print(
            f"{name:13} service {ours / scale:8.2f} {unit}   DataLoader x {RANKS} ranks x {WORKERS} worker "
            f"{theirs / scale:8.2f} {unit}   service / DataLoader {ours / theirs:.2f}"
        )
