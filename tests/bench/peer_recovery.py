"""The peer of `recovery.py`: a torchdata StatefulDataLoader that reads, tokenizes and packs the demo's text.

    python tests/bench/peer_recovery.py save STATE BATCHES     read so many batches, write the state
    python tests/bench/peer_recovery.py resume STATE           load it; JSON: seconds to the next batch

`resume` is what a trainer does that was restarted. The dataset keeps its own place, as users write it: file,
batch of rows, row and tokens left over, so that nothing is read that lies before.
"""

from __future__ import annotations

import json
import pickle
import sys
import time

BEGAN = time.perf_counter()

from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import fastokens  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

LENGTH = 8192
DEMO = Path(__file__).resolve().parents[2] / "build" / "demo"
SOURCES = (("text", "content"), ("code", "code"))
WORKERS = 1


class Packed(IterableDataset[torch.Tensor]):
    """Sequences of a worker's share of the rows, over and over; resumes at a row."""

    def __init__(self) -> None:
        self.place = (0, 0)  # file, row group
        self.held: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.held = tuple(state["place"]), state["held"]

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        tokenizer = fastokens.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        files = [
            (path, column) for name, column in SOURCES for path in sorted((DEMO / name).glob("*.parquet"))
        ]
        while True:
            number, group = self.place
            path, column = files[number % len(files)]
            file = pq.ParquetFile(path)
            if group >= file.num_row_groups:
                self.place = (number + 1, 0)
                continue
            texts = file.read_row_group(group, columns=[column]).column(0).to_pylist()
            texts = [text for text in texts[info.id :: info.num_workers] if text]
            self.place = (number, group + 1)
            for ids in tokenizer.encode_batch(texts, add_special_tokens=False):
                self.held += ids.ids if hasattr(ids, "ids") else list(ids)
            while len(self.held) >= LENGTH:
                sequence, self.held = self.held[:LENGTH], self.held[LENGTH:]
                yield torch.from_numpy(np.array(sequence, np.int64))


def main() -> None:
    action, path, *rest = sys.argv[1:]
    loader = StatefulDataLoader(Packed(), batch_size=16, num_workers=WORKERS)
    if action == "save":
        batches = iter(loader)
        for _ in range(int(rest[0])):
            next(batches)
        Path(path).write_bytes(pickle.dumps(loader.state_dict()))
        return
    loader.load_state_dict(pickle.loads(Path(path).read_bytes()))
    next(iter(loader))
    print(json.dumps({"seconds": time.perf_counter() - BEGAN}), flush=True)


if __name__ == "__main__":
    main()
