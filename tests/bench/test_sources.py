"""306 sources of 50 columns x 500 row groups: what it costs to hold them open, and to start.

    make bench

The footer of one such file takes about 20 MB once parsed. A DataLoader worker parses that of every source; a
loader keeps an index instead. Both open the same files, in one process each. The files are links to one, so
that the bench needs 10 MB of disk. Also: the first block of a 100-shard source from a cold start, with and
without the cached index. Prints figures and ratios; asserts nothing of speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SourceReader

pytestmark = pytest.mark.bench

ROOT = Path(__file__).resolve().parents[2]
SOURCES, COLUMNS, GROUPS, ROWS = 306, 50, 500, 20


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    texts = [f"row {n} " + "x" * int(rng.integers(5, 30)) for n in range(GROUPS * ROWS)]
    table = pa.table({"c00": texts} | {f"c{i:02}": rng.random(len(texts)) for i in range(1, COLUMNS)})
    first = folder / "source-000.parquet"
    pq.write_table(table, first, row_group_size=ROWS)
    for number in range(1, SOURCES):
        os.link(first, folder / f"source-{number:03}.parquet")
    return folder


def side(name: str, folder: Path, cache: Path) -> dict[str, float]:
    command = [sys.executable, "tests/bench/sources_open.py", name, str(folder), str(cache)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_many_sources(sources: Path, tmp_path: Path) -> None:
    runs = {
        "service, no index": side("service", sources, tmp_path),
        "service, index cached": side("service", sources, tmp_path),
        "DataLoader worker": side("dataloader", sources, tmp_path),
    }
    print(f"\n{SOURCES} sources of {COLUMNS} columns x {GROUPS} row groups, one process each")
    print(f"{'':22}{'open, s':>9}{'held, MiB':>11}{'after a read of each, MiB':>27}")
    for name, row in runs.items():
        held, after = row["held"] / 2**20, row["after_reading"] / 2**20
        print(f"{name:22}{row['opened_s']:9.1f}{held:11.0f}{after:27.0f}")
    ours, theirs = runs["service, index cached"], runs["DataLoader worker"]
    print(f"memory, one process: DataLoader / service {theirs['after_reading'] / ours['after_reading']:.1f}")
    for ranks, workers in ((4, 2), (8, 8)):
        ratio = ranks * workers * theirs["after_reading"] / (2 * ours["after_reading"])
        print(f"  {ranks} ranks x {workers} workers against 2 loaders: {ratio:.0f}")


def test_cold_start_on_100_shards(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lines = [f"document {n} " + "word " * int(rng.integers(20, 400)) for n in range(2000)]
    for number in range(100):
        pq.write_table(pa.table({"text": lines}), tmp_path / f"{number:03}.parquet", row_group_size=200)
    source = Source(format="parquet", path=str(tmp_path / "*.parquet"), text="text")
    print()
    for name in ("no index", "index cached"):
        began = time.perf_counter()
        reader = SourceReader("s", source, tmp_path, tmp_path / "cache", seed=1)
        opened = time.perf_counter() - began
        rows = len(reader.read_block(BlockId("s", 0, 0)))
        first = time.perf_counter() - began
        times = f"open {opened * 1e3:7.1f} ms, first block ({rows} rows) {first * 1e3:7.1f} ms"
        print(f"100 shards, {name:13} {times}")
