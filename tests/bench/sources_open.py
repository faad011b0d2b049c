"""One side of test_sources.py: open every source, read one block of each, say what it took.

    python tests/bench/sources_open.py service|dataloader FOLDER CACHE

`service`: a loader's `SourceReader` of each source, its index from CACHE where it is there. `dataloader`: a
ParquetFile of each, kept open, as a Dataset in a DataLoader worker keeps them. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from dataloader_svc.config.schema import Source
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SourceReader
from dataloader_svc.storage import Storage


def private_bytes() -> int:
    return int(psutil.Process().memory_full_info().uss)


def main() -> None:
    side, folder, cache = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    paths = sorted(folder.glob("*.parquet"))
    before, began = private_bytes(), time.perf_counter()
    if side == "service":
        storage = Storage()  # one a loader: what formats keep has one limit for all sources
        readers = []
        for path in paths:
            source = Source(format="parquet", path=str(path), text="c00")
            readers.append(SourceReader(path.stem, source, folder, cache, seed=1, storage=storage))
        opened, held = time.perf_counter() - began, private_bytes() - before
        rows = sum(len(reader.read_block(BlockId(reader.name, 0, 0))) for reader in readers)
    else:
        files = [pq.ParquetFile(path) for path in paths]
        opened, held = time.perf_counter() - began, private_bytes() - before
        rows = sum(file.read_row_group(0, columns=["c00"]).num_rows for file in files)
    after = private_bytes() - before
    print(json.dumps({"opened_s": opened, "held": held, "after_reading": after, "rows": rows}))


if __name__ == "__main__":
    main()
