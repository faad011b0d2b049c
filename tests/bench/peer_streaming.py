"""The other peer of `recovery.py`: a Mosaic StreamingDataset that reads and tokenizes the demo's text.

    python tests/bench/peer_streaming.py convert FOLDER             write the demo's text as MDS shards
    python tests/bench/peer_streaming.py save STATE BATCHES FOLDER  read so many batches, write the state
    python tests/bench/peer_streaming.py resume STATE FOLDER        load it; JSON: seconds to the next batch

`resume` is what a trainer does that was restarted, with StreamingDataLoader's own `state_dict`: that counts
samples, and so documents aren't packed here; a batch ends with as many tokens as a step of the service has.
"""

from __future__ import annotations

import json
import sys
import time

BEGAN = time.perf_counter()

from collections.abc import Iterator  # noqa: E402
from functools import cached_property  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import fastokens  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402

TOKENS = 16 * 8192
DEMO = Path(__file__).resolve().parents[2] / "build" / "demo"
SOURCES = (("text", "content"), ("code", "code"))


class Tokenized(StreamingDataset):  # type: ignore[misc]  # its environment has no types
    """Token ids of a document."""

    def __getitem__(self, at: int) -> Any:
        text = super().__getitem__(at)["text"]
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    @cached_property
    def tokenizer(self) -> Any:
        """Made in the worker that needs it."""
        return fastokens.Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def convert(folder: str) -> None:
    """Shards of 16 MB, as the harness of peers writes them."""
    with MDSWriter(out=folder, columns={"text": "str"}, size_limit="16mb") as out:
        for name, column in SOURCES:
            for path in sorted((DEMO / name).glob("*.parquet")):
                for text in pq.read_table(path, columns=[column]).column(0).to_pylist():
                    if text:
                        out.write({"text": text})


def collate(documents: list[Any]) -> dict[str, list[Any]]:
    """A dict: the loader counts the samples of those right."""
    return {"input_ids": documents}


def read(batches: Iterator[dict[str, list[Any]]], tokens: int) -> None:
    """Documents of so many tokens."""
    while tokens > 0:
        tokens -= sum(len(ids) for ids in next(batches)["input_ids"])


def main() -> None:
    action, path, *rest = sys.argv[1:]
    if action == "convert":
        convert(path)
        return
    data = Tokenized(local=rest[-1], shuffle=True, shuffle_seed=17, batch_size=8)
    loader = StreamingDataLoader(data, batch_size=8, num_workers=1, collate_fn=collate)
    if action == "save":
        read(iter(loader), int(rest[0]) * TOKENS)
        Path(path).write_text(json.dumps(loader.state_dict()))
        return
    loader.load_state_dict(json.loads(Path(path).read_text()))
    read(iter(loader), TOKENS)
    print(json.dumps({"seconds": time.perf_counter() - BEGAN}), flush=True)


if __name__ == "__main__":
    main()
