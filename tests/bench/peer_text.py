"""One rank of the peer: a torch DataLoader whose workers read, tokenize and pack text, as users write it.

    python tests/bench/peer_text.py RANK RANKS WORKERS SEQUENCES

Same files, same tokenizer library and sequence length as the service; packing is concatenate-until-full, the
cheapest there is. Prints one line of JSON at the end: tokens, seconds, PSS of this rank and its workers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fastokens
import numpy as np
import psutil
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

LENGTH = 8192
DEMO = Path(__file__).resolve().parents[2] / "build" / "demo"
SOURCES = (("text", "content"), ("code", "code"))


class Packed(IterableDataset):
    """Sequences of this rank's and worker's share of the rows, over and over."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        shard = self.rank * info.num_workers + info.id
        shards = self.ranks * info.num_workers
        tokenizer = fastokens.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        held: list[np.ndarray] = []
        size = 0
        while True:
            for folder, column in SOURCES:
                for path in sorted((DEMO / folder).glob("*.parquet")):
                    for batch in pq.ParquetFile(path).iter_batches(256, columns=[column]):
                        texts = [text for text in batch.column(0).to_pylist()[shard::shards] if text]
                        if not texts:
                            continue
                        for ids in tokenizer.encode_batch(texts, add_special_tokens=False):
                            held.append(np.asarray(ids.ids if hasattr(ids, "ids") else ids, np.int64))
                            size += len(held[-1])
                            while size >= LENGTH:
                                joined = np.concatenate(held)
                                yield torch.from_numpy(joined[:LENGTH].copy())
                                held, size = [joined[LENGTH:]], size - LENGTH


def main() -> None:
    rank, ranks, workers, sequences = map(int, sys.argv[1:])
    loader = iter(DataLoader(Packed(rank, ranks), batch_size=1, num_workers=workers))
    next(loader)  # the start of the workers is not counted
    began = time.perf_counter()
    tokens = sum(next(loader).numel() for _ in range(sequences))
    seconds = time.perf_counter() - began
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    pss = sum(process.memory_full_info().pss for process in family)
    print(json.dumps({"tokens": tokens, "seconds": seconds, "pss": pss}), flush=True)


if __name__ == "__main__":
    main()
