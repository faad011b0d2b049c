"""Sources of 100, 1,000 and 10,000 rows, of 8, 32 and 128 words, asked for as 20, 30 and 50 %.

The deviation is the largest of the three distances between a share and what was asked for, of the first 100,
1,000 and 10,000 rows, in samples and in tokens; each source comes again as often as it must, by the means
that a peer has for that. Peers take weights in samples, and are given the shares as they are; the service
takes them in samples or in tokens, and is run with both. `rows to the end`: as each is by default, up to
20,000, which means that it has none.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIZES = {"small": 100, "middle": 1_000, "large": 10_000}
WORDS = {"small": 8, "middle": 32, "large": 128}
SHARES = {"small": 0.2, "middle": 0.3, "large": 0.5}
COUNTS = (100, 1_000, 10_000)
MOST = 20_000
NO_BETTER = ("rows to the end",)
STYLES = ("samples", "tokens", "default")
"""One run each: sources that come again, with weights in samples or in tokens; and what it does untold."""

Row = dict[str, Any]
"""source, row (number in it), tokens, and a text."""


def make(folder: Path) -> None:
    """JSON lines, one file a source."""
    from tests.bench.peers.loaders import common

    choice = random.Random(17)
    words = ["of", "loader", "sequence", "picture", "block", "rows", "and", "the"]
    for source, size in SIZES.items():
        texts = [
            f"{row} " + " ".join(choice.choices(words, k=choice.randint(1, 2 * WORDS[source])))
            for row in range(size)
        ]
        lengths = [len(ids) + 1 for ids in common.encoder("same")(texts)]  # and the end of the document
        with (folder / f"{source}.jsonl").open("w") as out:
            for row, (text, tokens) in enumerate(zip(texts, lengths, strict=True)):
                out.write(json.dumps({"source": source, "row": row, "tokens": tokens, "text": text}) + "\n")


def _rows(folder: Path, source: str) -> list[Row]:
    return [json.loads(line) for line in (folder / f"{source}.jsonl").open()]


def grain_loader(folder: Path, style: str) -> Iterator[Row]:
    import grain

    sources = []
    for seed, source in enumerate(SHARES):
        rows = grain.MapDataset.source(_rows(folder, source)).seed(seed).shuffle()
        sources.append(rows.repeat() if style != "default" else rows)
    return iter(grain.MapDataset.mix(sources, weights=list(SHARES.values())).to_iter_dataset())


def lit(folder: Path, style: str) -> Iterator[Row]:
    import litdata

    for source in SHARES:
        if not (folder / f"lit-{source}").exists():
            litdata.optimize(
                fn=dict,
                inputs=_rows(folder, source),
                output_dir=str(folder / f"lit-{source}"),
                chunk_size=100,
            )
    sources = [
        litdata.StreamingDataset(str(folder / f"lit-{source}"), shuffle=True, seed=17) for source in SHARES
    ]
    mixed = litdata.CombinedStreamingDataset(
        sources, weights=list(SHARES.values()), iterate_over_all=False, seed=17
    )
    while True:  # an epoch ends with the first source that does
        for batch in litdata.StreamingDataLoader(mixed, batch_size=1, collate_fn=list):
            yield from batch
        if style == "default":
            return


def mds(folder: Path, style: str) -> Iterator[Row]:
    from streaming import MDSWriter, Stream, StreamingDataset

    columns = {"source": "str", "row": "int", "tokens": "int"}
    for source in SHARES:
        if not (folder / f"mds-{source}").exists():
            with MDSWriter(out=str(folder / f"mds-{source}"), columns=columns) as out:
                for row in _rows(folder, source):
                    out.write({name: row[name] for name in columns})
    streams = [
        Stream(local=str(folder / f"mds-{source}"), proportion=share) for source, share in SHARES.items()
    ]
    size = {"epoch_size": COUNTS[-1]} if style != "default" else {}
    mixed = StreamingDataset(streams=streams, shuffle=True, shuffle_seed=17, batch_size=1, **size)
    return iter(mixed)


def nodes(folder: Path, style: str) -> Iterator[Row]:
    from torch.utils.data import RandomSampler
    from torchdata.nodes import Loader, MapStyleWrapper, MultiNodeWeightedSampler

    rows = {source: _rows(folder, source) for source in SHARES}
    sources = {source: MapStyleWrapper(each, RandomSampler(each)) for source, each in rows.items()}
    criteria = {"stop_criteria": "CYCLE_FOREVER"} if style != "default" else {}
    return iter(Loader(MultiNodeWeightedSampler(sources, SHARES, seed=17, **criteria)))


def web(folder: Path, style: str) -> Iterator[Row]:
    import webdataset

    sources = []
    for source in SHARES:
        rows = _rows(folder, source)
        pipeline = webdataset.DataPipeline(lambda rows=rows: iter(rows), webdataset.shuffle(100))
        sources.append(pipeline.repeat() if style != "default" else pipeline)
    random.seed(17)
    return iter(webdataset.RandomMix(sources, list(SHARES.values())))


def ours(folder: Path, style: str) -> Iterator[Row]:
    from dataloader_client import DataServiceLoader
    from tests.bench.peers.correct.service import serving

    sources = {
        source: {"format": "jsonl", "path": str(folder / f"{source}.jsonl"), "text": "text"}
        for source in SHARES
    }
    unit = {} if style == "default" else {"unit": style}
    mixture: dict[str, Any] = {**unit, "schedule": [{"step": 0, **SHARES}]}
    with (
        serving(sources=sources, mixture=mixture, global_batch={"sequences": 4}) as (address, _),
        DataServiceLoader(address) as loader,
    ):
        for batch in loader:
            for span in batch.manifest.spans():
                row = (span.epoch, span.position)
                yield {"source": span.source, "row": row, "tokens": span.length, "piece": span.start > 0}


PEERS: dict[str, Callable[[Path, str], Iterator[Row]]] = {
    "dataloader-svc": ours,
    "grain": grain_loader,
    "litdata": lit,
    "mosaicml-streaming": mds,
    "torchdata nodes": nodes,
    "webdataset": web,
}


def run(peer: str, folder: Path, style: str) -> dict[str, Any]:
    """What a peer delivered, in order: [source, tokens] of each row. Nothing where it has no such weights."""
    if style == "tokens" and PEERS[peer] is not ours:
        return {}
    most = MOST if style == "default" else COUNTS[-1]
    rows = itertools.islice((row for row in PEERS[peer](folder, style) if not row.get("piece")), most)
    return {"rows": [[row["source"], row["tokens"]] for row in rows]}


def figures(said: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of what a peer said in each style. Percentage points."""
    found = {}
    for count in COUNTS:
        for unit in ("samples", "tokens"):
            rows = (said[unit] or said["samples"])["rows"]
            if len(rows) < count:
                continue
            amounts = dict.fromkeys(SHARES, 0)
            for source, tokens in rows[:count]:
                amounts[source] += 1 if unit == "samples" else tokens
            total = sum(amounts.values())
            off = max(abs(amounts[source] / total - share) for source, share in SHARES.items())
            found[f"points off after {count:,} rows, {unit}"] = 100 * off
    found["rows to the end"] = len(said["default"]["rows"])
    return found
