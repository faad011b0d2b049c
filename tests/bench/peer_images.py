"""The peer of test_images.py: a torch DataLoader with Pillow, as users write it.

    python tests/bench/peer_images.py FOLDER WORKERS ROUNDS

Opens each file, converts to RGB, resizes (bicubic) to the size that the Qwen2-VL rule gives, and cuts uint8
patches. Prints one line of JSON: pictures, seconds, CPU seconds of this process and its workers.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from dataloader_svc.transforms.vision import VisionRule, smart_resize

RULE = VisionRule()


class Pictures(Dataset):
    def __init__(self, paths: list[Path], rounds: int) -> None:
        self.paths = paths * rounds

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as opened:
            image = opened.convert("RGB")
        height, width = smart_resize(image.height, image.width, RULE)
        pixels = torch.from_numpy(np.asarray(image.resize((width, height), Image.Resampling.BICUBIC)).copy())
        m, p = RULE.merge, RULE.patch
        view = pixels.reshape(height // (m * p), m, p, width // (m * p), m, p, 3)
        return view.permute(0, 3, 1, 4, 6, 2, 5).reshape(-1, 3 * p * p)


def cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    torch.set_num_threads(1)
    folder, workers, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dataset = Pictures(sorted(folder.iterdir()), rounds)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    before, began = cpu_seconds(), time.perf_counter()
    pictures = sum(1 for _ in loader)
    seconds = time.perf_counter() - began
    del loader  # joins the workers, whose CPU counts from then on
    print(json.dumps({"pictures": pictures, "seconds": seconds, "cpu": cpu_seconds() - before}))


if __name__ == "__main__":
    main()
