"""What becomes of documents that are longer than a sequence."""

from __future__ import annotations

import numpy as np
import pytest

from dataloader_svc.errors import Reason
from dataloader_svc.planner.pieces import BlockPieces, Pieces, Room, TooLongError, cut
from dataloader_svc.sample import BlockId
from dataloader_svc.testing.scripted_loader import Sample, probe_columns

BLOCK = BlockId("a", 2, 7)


def pieces_of(samples: list[Sample], rule: str, length: int, start: int = 100, **media: int) -> BlockPieces:
    return cut(probe_columns(BLOCK, start, samples), rule, Room(length, **media))


def ranges(block: BlockPieces) -> list[list[tuple[int, int, int]]]:
    rows = list(
        zip(
            block.piece_start.tolist(),
            block.piece_length.tolist(),
            block.piece_patches.tolist(),
            strict=True,
        )
    )
    offsets = block.piece_offsets.tolist()
    return [rows[low:high] for low, high in zip(offsets, offsets[1:], strict=False)]


def test_what_fits_stays_whole_and_bad_ones_are_passed_over():
    block = pieces_of([Sample(5), Sample(0), Sample(8), Sample(1)], "split", 8)
    assert block.position.tolist() == [100, 102, 103]
    assert ranges(block) == [[(0, 5, 0)], [(0, 8, 0)], [(0, 1, 0)]]
    assert block.ends.tolist() == [0, 5, 13, 14]
    assert [(row.position, row.reason) for row in block.skipped] == [(101, "empty_text")]


def test_split_cuts_everything_into_sequences():
    block = pieces_of([Sample(3), Sample(20), Sample(2)], "split", 8)
    assert ranges(block) == [[(0, 3, 0)], [(0, 8, 0), (8, 8, 0), (16, 4, 0)], [(0, 2, 0)]]
    assert block.ends.tolist() == [0, 3, 23, 25]


def test_truncate_counts_what_is_kept():
    block = pieces_of([Sample(20), Sample(2)], "truncate", 8)
    assert ranges(block) == [[(0, 8, 0)], [(0, 2, 0)]]
    assert block.ends.tolist() == [0, 8, 10]


def test_drop_says_so():
    block = pieces_of([Sample(20), Sample(2)], "drop", 8)
    assert block.position.tolist() == [101]
    (row,) = block.skipped
    assert (row.position, row.reason, row.detail) == (100, Reason.TOO_LONG, "20 tokens, sequence_length 8")


def test_error_names_the_position():
    with pytest.raises(TooLongError, match="position 101 has 20 tokens"):
        pieces_of([Sample(2), Sample(20)], "error", 8)


MEDIA = Sample(58, ((10, 16, 64), (36, 16, 64)))  # text 10, picture 16, text 10, picture 16, text 6


def test_a_cut_goes_round_a_picture():
    assert ranges(pieces_of([MEDIA], "truncate", 40)) == [[(0, 36, 64)]]
    assert ranges(pieces_of([MEDIA], "split", 40)) == [[(0, 36, 64), (36, 22, 64)]]
    assert ranges(pieces_of([MEDIA], "split", 16)) == [
        [(0, 10, 0), (10, 16, 64), (26, 10, 0), (36, 16, 64), (52, 6, 0)]
    ]


@pytest.mark.parametrize("rule", ["split", "truncate", "drop"])
def test_a_picture_longer_than_a_sequence_takes_its_document_along(rule):
    block = pieces_of([Sample(41, ((0, 41, 164),)), Sample(3)], rule, 40)
    assert block.position.tolist() == [101]
    assert [row.reason for row in block.skipped] == [Reason.TOO_LONG]


def test_a_run_names_the_samples_that_its_pieces_come_from():
    block = pieces_of([Sample(3), Sample(0), Sample(20), Sample(2)], "split", 8)
    run = block.run(1, 3, 4)
    assert run.source.tolist() == [4, 4, 4, 4]
    assert run.epoch.tolist() == [2, 2, 2, 2]
    assert run.block.tolist() == [7, 7, 7, 7]
    assert run.position.tolist() == [102, 102, 102, 103]
    assert run.start.tolist() == [0, 8, 16, 0]
    assert len(block.run(1, 1, 4)) == 0


def test_skipped_rows_of_a_range():
    block = pieces_of([Sample(0), Sample(1), Sample(0), Sample(0)], "split", 8)
    assert [row.position for row in block.skipped_between(101, 103)] == [102]
    assert [row.position for row in block.skipped_between(100, 104)] == [100, 102, 103]


def test_a_bad_sample_that_its_probe_does_not_list_still_has_a_reason():
    probe = probe_columns(BLOCK, 0, [Sample(3), Sample(4)])
    probe.tokens[1] = 0
    assert [(row.position, row.reason) for row in cut(probe, "split", Room(8)).skipped] == [(1, "bad_record")]


def test_pieces_join_and_part():
    block = pieces_of([Sample(3), Sample(20)], "split", 8)
    joined = Pieces.concat([block.run(0, 1, 0), Pieces.empty(), block.run(1, 2, 1)])
    assert joined.tokens == 23
    assert joined.take(np.array([3, 0])).length.tolist() == [4, 3]
    assert len(Pieces.concat([])) == 0


def test_a_cut_runs_between_clips_of_sound():
    clips = ((2, 6, 0, 24), (8, 6, 0, 24), (14, 6, 0, 22))
    block = pieces_of([Sample(20, clips), Sample(5, ((0, 2, 7), (2, 2, 0, 8)))], "split", 10)
    assert ranges(block) == [[(0, 8, 0), (8, 6, 0), (14, 6, 0)], [(0, 5, 7)]]
    assert block.piece_frames.tolist() == [24, 24, 22, 8]
    run = block.run(0, 2, source=0)
    assert run.frames.tolist() == [24, 24, 22, 8]
    assert run.has_media.tolist() == [True] * 4


def test_a_document_of_too_many_patches_is_cut_before_the_picture_that_has_no_room():
    assert ranges(pieces_of([MEDIA], "split", 100, patches=127)) == [[(0, 36, 64), (36, 22, 64)]]
    assert ranges(pieces_of([MEDIA], "truncate", 100, patches=64)) == [[(0, 36, 64)]]
    assert ranges(pieces_of([MEDIA], "split", 100, patches=128)) == [[(0, 58, 128)]]


def test_a_document_of_too_much_sound_is_cut_between_clips():
    clips = ((2, 6, 0, 24), (8, 6, 0, 24), (14, 6, 0, 22))
    block = pieces_of([Sample(20, clips)], "split", 100, frames=48)
    assert ranges(block) == [[(0, 14, 0), (14, 6, 0)]]
    assert block.piece_frames.tolist() == [48, 22]


def test_a_document_of_too_many_media_is_cut_before_the_first_that_has_no_room():
    media = ((2, 4, 16), (6, 4, 16), (12, 6, 0, 24), (18, 4, 16))
    block = pieces_of([Sample(30, media), Sample(9)], "split", 100, media=2)
    assert ranges(block) == [[(0, 12, 32), (12, 18, 16)], [(0, 9, 0)]]
    assert block.piece_media.tolist() == [2, 2, 0]
    assert block.run(0, 2, source=0).media.tolist() == [2, 2, 0]
    assert ranges(pieces_of([Sample(30, media)], "truncate", 100, media=1)) == [[(0, 6, 16)]]
    assert pieces_of([Sample(30, media)], "split", 100).piece_media.tolist() == [4]
    with pytest.raises(TooLongError, match="has 4 media, strategy.limits.media 3"):
        pieces_of([Sample(30, media)], "error", 100, media=3)


@pytest.mark.parametrize("rule", ["split", "truncate", "drop"])
def test_a_picture_of_more_patches_than_a_sequence_may_have_takes_its_document_along(rule):
    block = pieces_of([Sample(17, ((0, 16, 64),)), Sample(3)], rule, 40, patches=63)
    assert block.position.tolist() == [101]
    (row,) = block.skipped
    assert (row.reason, row.detail) == (Reason.TOO_LONG, "64 patches, strategy.limits.patches 63")


def test_error_names_the_limit():
    with pytest.raises(TooLongError, match=r"position 100 has 128 patches, strategy\.limits\.patches 100"):
        pieces_of([MEDIA], "error", 100, patches=100)
