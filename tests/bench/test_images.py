"""Pictures: decode, resize, cut into patches. Our readers in threads against a torch DataLoader with Pillow.

    make bench

The same files on both sides, the same sizes and patches; every process shares this machine's cores. Prints
pictures a second and pictures a CPU second (which is "per core" whatever else runs) and their ratios, for the
JPEG pictures alone and for all; asserts nothing of speed.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from dataloader_svc.media.image import ImageReader
from dataloader_svc.transforms.vision import VisionRule, grid, smart_resize, to_patches

pytestmark = [pytest.mark.bench, pytest.mark.needs_demo]

ROOT = Path(__file__).resolve().parents[2]
THREADS, REPEATS = 2, 3
RULE = VisionRule()
READER = ImageReader(RULE.max_source_pixels)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's pictures as files: jpeg/ and all/."""
    folder = tmp_path_factory.mktemp("pictures")
    for kind in ("jpeg", "all"):
        (folder / kind).mkdir()
    for shard in sorted((ROOT / "build/demo/captions").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                name = Path(member.name).name
                if name.endswith((".jpg", ".png", ".webp")):
                    data = tar.extractfile(member).read()
                    (folder / "all" / name).write_bytes(data)
                    if data.startswith(b"\xff\xd8"):
                        (folder / "jpeg" / name).write_bytes(data)
    return folder


def one(path: Path) -> int:
    data = path.read_bytes()
    found = READER.probe(data)
    size = smart_resize(found.height, found.width, RULE)
    rows, columns = grid(*size, RULE)
    out = np.empty((rows * columns, 3 * RULE.patch**2), np.uint8)
    to_patches(READER.decode(data, size), RULE, out)
    return len(out)


def ours(folder: Path, rounds: int) -> dict[str, float]:
    cv2.setNumThreads(1)
    paths = sorted(folder.iterdir()) * rounds
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        assert min(pool.map(one, paths)) > 0
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"pictures": len(paths), "seconds": time.perf_counter() - began, "cpu": cpu}


def peer(folder: Path, rounds: int) -> dict[str, float]:
    command = [sys.executable, "tests/bench/peer_images.py", str(folder), str(THREADS), str(rounds)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=env)
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["jpeg", "all"])
def test_pictures_against_a_dataloader_with_pillow(pictures: Path, kind: str) -> None:
    folder = pictures / kind
    rounds = 1
    runs = [(ours(folder, rounds), peer(folder, rounds)) for _ in range(REPEATS)]
    count = len(list(folder.iterdir()))
    print(f"\n{kind}: {count} pictures, {sum(p.stat().st_size for p in folder.iterdir()) / 1e6:.0f} MB")
    for name, key in (("pictures/s", "seconds"), ("pictures/CPU s", "cpu")):
        mine, theirs = (statistics.median(run[i]["pictures"] / run[i][key] for run in runs) for i in (0, 1))
        print(f"{name:15} ours {mine:7.1f}   DataLoader + Pillow {theirs:7.1f}   ratio {mine / theirs:.2f}")
