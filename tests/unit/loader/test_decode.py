"""Pieces of held blocks: token ranges, the media inside them, pixels against a picture decoded alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dataloader_svc.config.schema import Config
from dataloader_svc.errors import Overloaded, StateError
from dataloader_svc.loader.decode import PieceRange, TakenPiece, check_size, decode, take, take_silent
from dataloader_svc.loader.read import HeldBlock, read_block
from dataloader_svc.loader.rules import SampleRule, sample_rule
from dataloader_svc.media import image, video
from dataloader_svc.media.sampling import VideoSampling
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.vision import from_patches

from .conftest import configured, write_jsonl

CASES = Path(__file__).parents[2] / "cases" / "data"


class Block:
    """A held block with its reader and rule; `piece(position, start, length)` takes from it."""

    def __init__(self, held: HeldBlock, reader: SourceReader, rule: SampleRule) -> None:
        self.held, self.reader, self.rule = held, reader, rule

    def tokens(self, position: int) -> int:
        return int(np.diff(self.held.id_offsets)[position - self.held.start])

    def piece(self, position: int, start: int = 0, length: int | None = None) -> TakenPiece:
        length = self.tokens(position) - start if length is None else length
        return take(self.held, PieceRange(position, start, length), self.reader, self.rule)


@pytest.fixture
def captions(config: Config, folder: Path, rules: dict[str, SampleRule], pool: ThreadPoolExecutor) -> Block:
    reader = SourceReader("captions", config.sources["captions"], folder, None, config.seed)
    rule = rules["captions"]
    return Block(read_block(reader, BlockId("captions", 0, 0), rule, pool), reader, rule)


def test_whole_documents(captions: Block, pool: ThreadPoolExecutor, folder: Path) -> None:
    positions = [3, 0, 1]
    frame = decode([captions.piece(p) for p in positions], 14, pool)
    arrays = frame.arrays
    assert frame.meta == {"bad": []}
    assert arrays["ok"].tolist() == [1, 1, 1]
    assert arrays["media_offsets"].tolist() == [0, 1, 2, 4]
    assert np.diff(arrays["id_offsets"]).tolist() == [captions.tokens(p) for p in positions]
    held = captions.held
    expected = [held.ids[held.id_offsets[p] : held.id_offsets[p + 1]] for p in positions]
    assert np.array_equal(arrays["ids"], np.concatenate(expected))
    # Each picture's pixels are those of the file, decoded alone.
    first = 0
    for grid, name in zip(arrays["grid_thw"].tolist(), ("3", "0", "1", "2"), strict=True):
        patches = arrays["pixels"][first : first + np.prod(grid)]
        pixels = from_patches(patches, tuple(grid), captions.rule.vision)[0]
        data = (folder / "pictures" / f"{name}.png").read_bytes()
        assert np.array_equal(pixels, image.decode(data, pixels.shape[:2]))
        first += len(patches)
    assert first == len(arrays["pixels"])


def test_dtypes_are_those_of_the_proto_file(captions: Block, pool: ThreadPoolExecutor) -> None:
    for pieces in ([captions.piece(0)], []):
        arrays = decode(pieces, 14, pool).arrays
        assert {name: array.dtype.name for name, array in arrays.items()} == {
            "ids": "int32",
            "id_offsets": "int64",
            "targets": "uint8",
            "second": "int32",
            "media_offsets": "int32",
            "media_kind": "uint8",
            "media_start": "int32",
            "grid_thw": "int32",
            "frame_times": "float32",
            "pixels": "uint8",
            "features": "float32",
            "ok": "uint8",
        }
        assert arrays["grid_thw"].shape[1] == 3
        assert arrays["pixels"].shape[1] == 3 * 14 * 14


def test_pieces_of_a_document(captions: Block, pool: ThreadPoolExecutor) -> None:
    """Cut after the first of two pictures: each piece has its own picture, counted from its own start."""
    media = captions.held.media
    first, second = range(media.offsets[1], media.offsets[2])
    cut = int(media.start[first] + media.tokens[first]) + 1
    frame = decode([captions.piece(1, 0, cut), captions.piece(1, cut), captions.piece(1, cut, 1)], 14, pool)
    arrays = frame.arrays
    assert arrays["media_offsets"].tolist() == [0, 1, 2, 2]
    assert arrays["media_start"].tolist() == [media.start[first], media.start[second] - cut]
    whole = decode([captions.piece(1)], 14, pool).arrays
    total = captions.tokens(1)
    assert np.array_equal(arrays["ids"][:total], whole["ids"])
    assert np.array_equal(arrays["targets"][:total], whole["targets"])
    assert np.array_equal(arrays["pixels"], whole["pixels"])


def test_a_cut_through_a_picture_is_refused(captions: Block) -> None:
    start = int(captions.held.media.start[0])
    for piece in ((0, 0, start + 1), (0, start + 1, 2)):
        with pytest.raises(StateError, match="captions/0/0: piece .* cuts the image at"):
            captions.piece(*piece)


def test_what_is_not_there(captions: Block) -> None:
    with pytest.raises(StateError, match=r"captions/0/0 .*captions.jsonl:0.*: planned tokens 0 to 999"):
        captions.piece(0, 0, 999)
    with pytest.raises(StateError, match="captions/0/2 .* has 0 now"):
        captions.piece(2, 0, 5)
    with pytest.raises(StateError, match="captions/0/70: not in block"):
        captions.piece(70, 0, 1)


def test_a_picture_that_does_not_decode(captions: Block, pool: ThreadPoolExecutor, folder: Path) -> None:
    """Its header was good when probed: zeros of the planned shape, the piece marked, the others untouched."""
    before = decode([captions.piece(p) for p in (0, 1, 3)], 14, pool).arrays
    (folder / "pictures" / "1.png").write_bytes((folder / "pictures" / "1.png").read_bytes()[:100])
    (folder / "pictures" / "3.png").unlink()
    frame = decode([captions.piece(p) for p in (0, 1, 3)], 14, pool)
    arrays = frame.arrays
    assert arrays["ok"].tolist() == [1, 0, 0]
    shard = str(folder / "captions.jsonl")
    assert [entry[:4] for entry in frame.meta["bad"]] == [
        [1, shard, 1, "truncated"],
        [2, shard, 3, "missing_file"],
    ]
    for name in before.keys() - {"ok", "pixels"}:
        assert np.array_equal(arrays[name], before[name])
    ends = np.cumsum([0, *arrays["grid_thw"].prod(axis=1)])
    shown = [arrays["pixels"][a:b].any() for a, b in zip(ends[:-1], ends[1:], strict=True)]
    assert shown == [True, False, True, False], "a good picture of a bad piece is still there"
    assert np.array_equal(arrays["pixels"][: ends[1]], before["pixels"][: ends[1]])


def test_a_piece_that_stays_masked(captions: Block, pool: ThreadPoolExecutor, folder: Path) -> None:
    """Repaired meanwhile: it is answered as when it could not be decoded, and nobody decodes it."""
    whole = (folder / "pictures" / "3.png").read_bytes()
    (folder / "pictures" / "3.png").write_bytes(whole[:100])
    before = decode([captions.piece(3), captions.piece(0)], 14, pool)
    (folder / "pictures" / "3.png").write_bytes(whole)
    again = PieceRange(3, 0, captions.tokens(3))
    silent = take_silent(captions.held, again, captions.reader, captions.rule)
    after = decode([silent, captions.piece(0)], 14, pool)
    assert before.arrays["ok"].tolist() == [0, 1]
    for name, values in before.arrays.items():
        assert np.array_equal(after.arrays[name], values), name
    assert after.meta["bad"] == []


def test_a_masked_piece_of_what_is_another_document_now(captions: Block, pool: ThreadPoolExecutor) -> None:
    longer = PieceRange(3, 0, captions.tokens(3) + 40)
    silent = take_silent(captions.held, longer, captions.reader, captions.rule)
    arrays = decode([silent], 14, pool).arrays
    assert arrays["ids"].tolist() == [0] * longer.length
    assert (arrays["targets"].any(), arrays["ok"].tolist()) == (False, [0])
    assert arrays["media_offsets"].tolist() == [0, 0]
    assert len(arrays["pixels"]) == 0


def test_size_is_checked_before_decoding(captions: Block, pool: ThreadPoolExecutor) -> None:
    pieces = [captions.piece(0), captions.piece(1)]
    arrays = decode(pieces, 14, pool).arrays
    size = arrays["ids"].nbytes + arrays["targets"].nbytes + arrays["pixels"].nbytes
    check_size(pieces, 0)
    check_size(pieces, size)
    with pytest.raises(Overloaded, match=f"take {size} bytes, above the {size - 1} asked for"):
        check_size(pieces, size - 1)


def test_a_video(folder: Path, tokenizer: Tokenizer, pool: ThreadPoolExecutor) -> None:
    """Frames are chosen by the source's rule; its tokens are a run of the video's own placeholder."""
    clip = CASES / "23-video-reordered-late-start" / "bframes_from_5s.mkv"
    (folder / "clip.mkv").write_bytes(clip.read_bytes())
    write_jsonl(folder / "clips.jsonl", [{"text": "see <video> now", "file": "clip.mkv"}])
    source = {
        "format": "jsonl",
        "path": "clips.jsonl",
        "text": "text",
        "video": {"field": "file", "frames": 3},
        "shuffle": False,
    }
    config = configured(
        sources={"clips": source},
        mixture={"schedule": [{"step": 0, "clips": 1}]},
        media_tokens={"video": tiny.VIDEO},
    )
    rule = sample_rule(config, "clips", folder, tokenizer)
    reader = SourceReader("clips", config.sources["clips"], folder, None, 0)
    block = Block(read_block(reader, BlockId("clips", 0, 0), rule, pool), reader, rule)
    assert not block.held.bad
    arrays = decode([block.piece(0)], 14, pool).arrays
    assert arrays["media_kind"].tolist() == [1]
    frames, height, width = arrays["grid_thw"][0].tolist()
    assert frames == 3
    assert (arrays["ids"] == tokenizer.control[tiny.VIDEO]).sum() * 4 == 3 * height * width
    pixels = from_patches(arrays["pixels"], (frames, height, width), rule.vision)
    alone = video.decode(str(clip), pixels.shape[1:3], VideoSampling(frames=3))
    assert np.array_equal(pixels, alone)
    assert arrays["frame_times"].tolist() == pytest.approx([0, 1.1, 2.3])
