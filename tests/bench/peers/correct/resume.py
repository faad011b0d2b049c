"""Stop at 10, 50 and 90 % of an epoch of 2,000 rows, and go on from the state in another process.

Each peer shuffles, and reads with two worker processes or what it has in their place, as its own guide shows.
Rows of both processes are held against the epoch: lost are those that neither had, repeated those that came
twice. The state is what a trainer saves, in bytes, by JSON where that can hold it, else by pickle; seconds
are those from the new loader to its first batch. What waits in the service to be packed counts as well.
"""

from __future__ import annotations

import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROWS, BATCH, WORKERS = 2_000, 20, 2
STOPS = (10, 50, 90)
NO_BETTER = ()
STYLES = tuple(f"{phase}-{stop}" for stop in STOPS for phase in ("before", "after"))

Loader = tuple[Iterator[list[int]], Callable[[], Any]]
"""Batches of numbers of rows to the end of the epoch, and what gives the state after the last one."""


def make(folder: Path) -> None:
    """JSON lines."""
    with (folder / "rows.jsonl").open("w") as out:
        for row in range(ROWS):
            out.write(json.dumps({"row": row, "text": f"row {row} " + "word " * (row * 37 % 60)}) + "\n")


def _stateful(loader: Any, state: Any, batches: Iterator[list[int]] | None = None) -> Loader:
    if state is not None:
        loader.load_state_dict(state)
    return batches or iter(loader), loader.state_dict


def torchdata(_folder: Path, state: Any) -> Loader:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(
        list(range(ROWS)), batch_size=BATCH, shuffle=True, num_workers=WORKERS, collate_fn=list
    )
    return _stateful(loader, state)


def mds(folder: Path, state: Any) -> Loader:
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    if not (folder / "mds").exists():
        with MDSWriter(out=str(folder / "mds"), columns={"row": "int"}, size_limit=1000) as out:
            for row in range(ROWS):
                out.write({"row": row})
    rows = StreamingDataset(local=str(folder / "mds"), shuffle=True, shuffle_seed=17, batch_size=BATCH)
    loader = StreamingDataLoader(rows, batch_size=BATCH, num_workers=WORKERS)
    if state is not None:
        loader.load_state_dict(state)
    return (batch["row"].tolist() for batch in loader), loader.state_dict


def lit(folder: Path, state: Any) -> Loader:
    import litdata

    if not (folder / "lit").exists():
        litdata.optimize(fn=int, inputs=list(range(ROWS)), output_dir=str(folder / "lit"), chunk_size=50)
    rows = litdata.StreamingDataset(str(folder / "lit"), shuffle=True, seed=17)
    return _stateful(
        litdata.StreamingDataLoader(rows, batch_size=BATCH, num_workers=WORKERS, collate_fn=list), state
    )


def grain_loader(_folder: Path, state: Any) -> Loader:
    import grain

    rows = grain.MapDataset.range(ROWS).seed(17).shuffle().to_iter_dataset()
    workers = grain.MultiprocessingOptions(num_workers=WORKERS)
    batches = iter(rows.batch(BATCH, batch_fn=list).mp_prefetch(workers))
    if state is not None:
        batches.set_state(state)
    return batches, batches.get_state


def ours(folder: Path, state: Any) -> Loader:
    from dataloader_client import DataServiceLoader

    loader: Any = None

    def batches() -> Iterator[list[int]]:
        nonlocal loader
        from tests.bench.peers.correct.service import serving

        source = {"format": "jsonl", "path": str(folder / "rows.jsonl"), "text": "text", "extent": 4096}
        source["shuffle"] = {"block": 32768}
        mixture = {"exhausted": "stop", "schedule": [{"step": 0, "rows": 1.0}]}
        config = {"sources": {"rows": source}, "mixture": mixture, "global_batch": {"sequences": 1}}
        with serving(**config) as (address, _), DataServiceLoader(address, state=state) as loader:
            for batch in loader:
                yield [span.position for span in batch.manifest.spans() if span.start == 0]

    return batches(), lambda: loader.state_dict()


PEERS: dict[str, Callable[[Path, Any], Loader]] = {
    "dataloader-svc": ours,
    "grain": grain_loader,
    "litdata": lit,
    "mosaicml-streaming": mds,
    "StatefulDataLoader": torchdata,
}


def run(peer: str, folder: Path, style: str) -> dict[str, Any]:
    """Before: rows up to the stop, and the size of the state that is left for After, which has the others."""
    phase, stop = style.split("-")
    saved = folder / f"{peer}-{stop}.state"
    state = None if phase == "before" else _load(saved.read_bytes())
    began, seen = time.perf_counter(), []
    batches, state_of = PEERS[peer](folder, state)
    first = None
    for batch in batches:
        first = first or time.perf_counter() - began
        seen += batch
        if phase == "before" and len(seen) >= ROWS * int(stop) / 100:
            data = _dump(state_of())
            saved.write_bytes(data)
            return {"rows": seen, "bytes": len(data)}
    return {"rows": seen, "first": first}


def _dump(state: Any) -> bytes:
    try:
        text = json.dumps(state)
    except TypeError:
        return b"p" + pickle.dumps(state)
    return b"j" + text.encode() if json.loads(text) == state else b"p" + pickle.dumps(state)


def _load(data: bytes) -> Any:
    if data[:1] == b"p":
        return pickle.loads(data[1:])
    return json.loads(data[1:])


def figures(said: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of what a peer said in each style."""
    found: dict[str, float] = {}
    for stop in STOPS:
        before, after = said[f"before-{stop}"], said[f"after-{stop}"]
        counts = Counter(before["rows"] + after["rows"])
        found[f"rows lost, {stop} %"] = ROWS - len(counts)
        found[f"rows repeated, {stop} %"] = sum(counts.values()) - len(counts)
        found[f"bytes, {stop} %"] = before["bytes"]
        found[f"s to first batch, {stop} %"] = after["first"] or 0.0
    return found
