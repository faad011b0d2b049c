"""What is fuzzed: every registered format, compressed ones, and the readers of media.

A target prepares valid input once, and a case damages it by a seed and reads it. An outcome is `read` (all
of it is good), `partly` or `refused`; whatever else happens is a finding.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.media.audio import AudioReader
from dataloader_svc.media.image import ImageReader
from dataloader_svc.media.mel import MelRule
from dataloader_svc.media.sampling import VideoSampling
from dataloader_svc.media.video import VideoReader
from dataloader_svc.sample import BlockId, keyed_rng
from dataloader_svc.sources import SOURCES, SourceReader
from dataloader_svc.sources.base import Rows
from dataloader_svc.sources.index import make_format
from dataloader_svc.storage import Storage
from dataloader_svc.testing.data import tiny_rows, write_source
from tests.fuzz.mutate import SAME_SIZE, mutated
from tests.sounds import encoded, tone

Case = Callable[[int], str]
"""Seed -> outcome. Raises whatever the reader raises that it should not."""

MANY_ROWS = 100_000
"""Far more than any of the tiny files can hold."""

MOST_FRAMES = 3000
"""Mel frames decoded of a clip that says it is longer: 30 s."""


class Finding(Exception):
    """Something wrong that raised nothing."""


def _source_cases(name: str, folder: Path, prepare: Callable[[Path], None] | None = None) -> Case:
    """Reads a damaged source as a loader does: list, index, order, all blocks of an epoch."""
    format_name = name.partition("-")[0]
    settings: dict[str, Any] = {"extent": 400, "shuffle": {"block": 1500}}
    rows = tiny_rows(24, image_side=6)
    source = write_source(folder, format_name, rows, shards=2, **settings)
    if prepare is not None:
        prepare(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".png")
    original = {path: path.read_bytes() for path in files}

    def case(seed: int) -> str:
        rng = keyed_rng(seed, "fuzz", name)
        path = files[int(rng.integers(len(files)))]
        try:
            if rng.random() < 0.25:
                return _read_after_damage(source, path, original[path], rng)
            path.write_bytes(mutated(original[path], rng))
            return _read_damaged(source, folder)
        finally:
            path.write_bytes(original[path])

    return case


def _read_damaged(source: Source, folder: Path) -> str:
    try:
        reader = SourceReader("fuzz", source, folder, None, 1)
    except SourceError:
        return "refused"
    if reader.num_rows > MANY_ROWS:
        raise Finding(f"{reader.num_rows} rows")
    good = total = 0
    for number in range(reader.order(0).num_blocks):
        samples = reader.read_block(BlockId("fuzz", 0, number))
        good += _check(Rows(len(samples), dict(samples.columns), samples.bad))
        total += len(samples)
    return "read" if good == total == 24 else "partly"


def _read_after_damage(source: Source, path: Path, whole: bytes, rng: np.random.Generator) -> str:
    """The file is damaged after it was indexed, its size being the same."""
    maker = make_format(source, Storage())
    matches = maker.list_shards(source.paths, path.parent)
    shards = [(match.path, maker.index_shard(match.path)) for match in matches]
    path.write_bytes(mutated(whole, rng, SAME_SIZE))
    good = total = 0
    for shard, index in shards:
        for extent in index.extents:
            total += extent.num_rows
            try:
                rows = maker.read(shard, extent)
            except SourceError:
                continue
            if rows.num_rows != extent.num_rows:
                raise Finding(f"{rows.num_rows} rows of {extent}")
            good += _check(rows)
    return "read" if good == total else "partly" if good else "refused"


def _check(rows: Rows) -> int:
    """How many rows are good; those are what `Rows` promises."""
    for role, column in rows.columns.items():
        if len(column) != rows.num_rows:
            raise Finding(f"{role}: {len(column)} values of {rows.num_rows} rows")
    if any(not 0 <= row < rows.num_rows for row in rows.bad):
        raise Finding(f"bad rows {sorted(rows.bad)} of {rows.num_rows}")
    for row in range(rows.num_rows):
        if row in rows.bad:
            assert isinstance(rows.bad[row], BadSample)
            continue
        text, pictures = rows.columns["text"][row], rows.columns["image"][row]
        if not isinstance(text, str):
            raise Finding(f"a text is {type(text)}")
        text.encode()
        if not all(isinstance(picture, bytes | str) for picture in pictures):
            raise Finding(f"pictures are {pictures!r}"[:200])
    return rows.num_rows - len(rows.bad)


def _compressed(how: str, folder: Path) -> None:
    for path in folder.glob("part-*"):
        if path.suffix != ".png":
            data = path.read_bytes()
            codec = pa.Codec("zstd")
            path.write_bytes(gzip.compress(data) if how == "gzip" else codec.compress(data, asbytes=True))


def _parquet_with(folder: Path, **settings: Any) -> None:
    for path in folder.glob("part-*.parquet"):
        pq.write_table(pq.read_table(path), path, row_group_size=8, **settings)


def _picture_cases(kind: str, folder: Path, **save: Any) -> Case:
    ramp = np.arange(40 * 56 * 3, dtype=np.uint32).reshape(40, 56, 3)
    file = io.BytesIO()
    Image.fromarray((ramp * 7 % 251).astype(np.uint8)).save(file, kind, **save)
    return _media_cases(f"{kind}{save}", file.getvalue(), ImageReader(max_source_pixels=10**6))


def _video_cases(folder: Path) -> Case:
    clip = Path(__file__).parents[1] / "cases/data/16-video-rotation/rot90.mp4"
    return _media_cases(
        "mp4", clip.read_bytes(), VideoReader(VideoSampling(frames=4), max_source_pixels=10**6)
    )


def _sound_cases(container: str, codec: str, folder: Path) -> Case:
    """One second of it."""
    rule = MelRule(bins=8)
    reader = AudioReader(rule, max_source_seconds=600)
    rate = 48_000 if codec == "libopus" else 16_000
    whole = encoded(np.stack([tone(rate, rate), tone(rate, rate, hertz=700)]), rate, container, codec)
    expected = reader.probe(whole).frames

    def case(seed: int) -> str:
        data = mutated(whole, keyed_rng(seed, "fuzz", codec))
        try:
            probe = reader.probe(data)
            features = reader.features(data, [(0, min(probe.frames, MOST_FRAMES))])
        except BadSample as bad:
            return "partly" if bad.reason is Reason.TRUNCATED else "refused"
        if features.shape != (min(probe.frames, MOST_FRAMES), 8) or features.dtype != np.float32:
            raise Finding(f"features {features.shape} of {probe}")
        if not np.isfinite(features).all() or probe.frames % rule.frames_per_token:
            raise Finding(f"features that are no numbers, or no whole tokens: {probe}")
        return "read" if probe.frames == expected else "partly"

    return case


def _media_cases(name: str, whole: bytes, reader: Any) -> Case:
    def case(seed: int) -> str:
        data = mutated(whole, keyed_rng(seed, "fuzz", name))
        try:
            probe = reader.probe(data)
        except BadSample:
            return "refused"
        try:
            pixels = reader.decode(data, (16, 24))
        except BadSample:
            return "partly"
        if pixels.shape != (probe.frames, 16, 24, 3) or pixels.dtype != np.uint8:
            raise Finding(f"pixels {pixels.shape} of {probe}")
        return "read"

    return case


NOT_HERE = frozenset({"lance"} if importlib.util.find_spec("lance") is None else ())
"""Formats that need a package which isn't installed."""

TARGETS: Mapping[str, Callable[[Path], Case]] = {
    **{name: functools.partial(_source_cases, name) for name in SOURCES.names() if name not in NOT_HERE},
    **{
        f"{name}-{how}": functools.partial(
            _source_cases, f"{name}-{how}", prepare=functools.partial(_compressed, how)
        )
        for name in ("jsonl", "webdataset")
        for how in ("gzip", "zstd")
    },
    "parquet-plain": functools.partial(
        _source_cases,
        "parquet-plain",
        prepare=functools.partial(_parquet_with, compression="none", use_dictionary=False),
    ),
    "parquet-v2": functools.partial(
        _source_cases,
        "parquet-v2",
        prepare=functools.partial(
            _parquet_with, compression="zstd", data_page_version="2.0", write_page_index=True
        ),
    ),
    "jpeg": functools.partial(_picture_cases, "JPEG"),
    "jpeg-progressive": functools.partial(_picture_cases, "JPEG", progressive=True),
    "png": functools.partial(_picture_cases, "PNG"),
    "webp": functools.partial(_picture_cases, "WEBP"),
    "gif": functools.partial(_picture_cases, "GIF"),
    "tiff": functools.partial(_picture_cases, "TIFF", compression="tiff_lzw"),
    "mp4": _video_cases,
    "wav": functools.partial(_sound_cases, "wav", "pcm_s16le"),
    "flac": functools.partial(_sound_cases, "flac", "flac"),
    "mp3": functools.partial(_sound_cases, "mp3", "libmp3lame"),
    "opus": functools.partial(_sound_cases, "ogg", "libopus"),
    "m4a": functools.partial(_sound_cases, "ipod", "aac"),
}

EXPENDABLE = frozenset({"mp4", "wav", "flac", "mp3", "opus", "m4a"})
"""A service reads these in processes that may die or hang: that is counted, and no finding."""
