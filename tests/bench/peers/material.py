"""The data that every peer gets: real text and real pictures of the demo, in plain files.

    text/text-0000.parquet ...   columns id (int64), text (string); a row group holds 256 rows
    images/000000.jpg, .txt      a picture and its caption
    sources/000.parquet ...      306 sources: columns as crawled corpora have them, 100 row groups; one file
                                 and links to it, since what a loader holds for each is what is measured

Each peer converts them into the format it likes best; how long that took and what it weighs is reported.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "build" / "demo"
SHARDS, GROUP = 8, 256
SOURCE_FILES, SOURCE_ROWS, SOURCE_GROUP = 306, 3200, 32
SOURCES = (("text", "content"), ("code", "code"))


def make(folder: Path) -> Path:
    """The material under `folder`, made where it is missing. Without the demo's data: FileNotFoundError."""
    if not (DEMO / "tokenizer.json").exists():
        raise FileNotFoundError(f"{DEMO} is missing: make demo-data makes it")
    if not (folder / ".ready").exists():
        _text(folder / "text")
        _images(folder / "images")
        (folder / ".ready").touch()
    if not (folder / "sources" / ".ready").exists():
        _sources(folder / "sources")
        (folder / "sources" / ".ready").touch()
    return folder


def _text(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for name, column in SOURCES:
        for path in sorted((DEMO / name).glob("*.parquet")):
            rows = pq.read_table(path, columns=[column])[column].to_pylist()
            texts += [text for text in rows if text.strip()]
    for shard in range(SHARDS):
        ids = list(range(shard, len(texts), SHARDS))
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [texts[row] for row in ids]})
        pq.write_table(table, folder / f"text-{shard:04d}.parquet", row_group_size=GROUP)


def _sources(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = pq.read_table(folder.parent / "text" / "text-0000.parquet", columns=["text"])["text"].to_pylist()
    rows = [texts[row % len(texts)] for row in range(SOURCE_ROWS)]
    names = ("dump", "url", "date", "file_path", "language")
    columns = {"text": rows, "id": [f"<urn:{row}>" for row in range(SOURCE_ROWS)]}
    columns |= {name: [f"{name}-{row // SOURCE_GROUP}" for row in range(SOURCE_ROWS)] for name in names}
    numbers = {"language_score": pa.array([0.9] * SOURCE_ROWS), "token_count": pa.array(map(len, rows))}
    first = folder / "000.parquet"
    pq.write_table(pa.table(columns | numbers), first, row_group_size=SOURCE_GROUP)
    for number in range(1, SOURCE_FILES):
        (folder / f"{number:03d}.parquet").hardlink_to(first)


def _images(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for shard in sorted((DEMO / "captions").glob("*.tar")):
        parts: dict[str, dict[str, bytes]] = {}
        with tarfile.open(shard) as tar:
            for member in tar:
                stem, _, suffix = Path(member.name).name.partition(".")
                parts.setdefault(stem, {})[suffix] = _bytes(tar, member)
        for found in parts.values():
            if found.get("jpg", b"").startswith(b"\xff\xd8"):
                (folder / f"{number:06d}.jpg").write_bytes(found["jpg"])
                (folder / f"{number:06d}.txt").write_bytes(found.get("txt", b"a picture"))
                number += 1


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    opened = tar.extractfile(member)
    return opened.read() if opened else io.BytesIO().read()
