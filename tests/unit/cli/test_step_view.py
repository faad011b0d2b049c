"""The numbers of a step: shares, fill, relative cost, and which sequences are shown."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from dataloader_svc.cli.contents import Content, PieceKey, Run
from dataloader_svc.cli.step_view import (
    PieceView,
    SequenceView,
    StepView,
    colours,
    shares,
    spread_over,
    step_json,
)
from dataloader_svc.sample import RowRef


def piece(source: str, position: int, length: int, start: int = 0) -> PieceView:
    return PieceView(PieceKey(source, 0, position, start, length))


def view_of(*sequences: SequenceView, unit: str = "tokens") -> StepView:
    counted = shares(sequences, ["code", "text"], [0.25, 0.75])
    return StepView("job", 3, "abcd", 100, unit, sequences, tuple(range(len(sequences))), counted)


def test_shares_count_a_sample_once_however_many_pieces_it_has() -> None:
    view = view_of(
        SequenceView(0, (piece("text", 1, 100),), 2.0, 0.0),
        SequenceView(
            1, (piece("text", 1, 40, start=100), piece("code", 0, 20), piece("code", 1, 20)), 1.0, 3.0
        ),
    )
    assert [(s.name, s.tokens, s.samples) for s in view.sources] == [("code", 40, 2), ("text", 140, 1)]
    assert [view.share(source) for source in view.sources] == [40 / 180, 140 / 180]
    assert (view.tokens, view.capacity, view.documents) == (180, 200, 4)
    assert view.relative_cost(view.sequences[0]) == (2.0 / 1.5, 0.0)
    assert view.relative_cost(view.sequences[1]) == (1.0 / 1.5, 2.0)
    assert view.spread == 2.0 / 1.5


def test_shares_of_samples_where_the_mixture_counts_samples() -> None:
    view = view_of(SequenceView(0, (piece("text", 1, 90), piece("code", 0, 10)), 1.0, 0.0), unit="samples")
    assert [view.share(source) for source in view.sources] == [0.5, 0.5]


def test_an_empty_step_divides_by_nothing() -> None:
    view = view_of(SequenceView(0, (), 0.0, 0.0))
    assert view.spread == 0.0
    assert [view.share(source) for source in view.sources] == [0.0, 0.0]
    assert step_json(view)["fill"] == 0.0


@pytest.mark.parametrize(
    ("count", "total"), [(1, 1), (1, 9), (2, 9), (4, 16), (5, 5), (8, 5), (7, 9), (63, 64)]
)
def test_shown_sequences_are_spread_over_the_step(count: int, total: int) -> None:
    chosen = spread_over(count, total)
    assert len(chosen) == min(count, total)
    assert chosen[0] == 0
    assert list(chosen) == sorted(set(chosen))
    assert count == 1 or chosen[-1] == total - 1
    gaps = [b - a for a, b in pairwise(chosen)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_every_source_has_a_colour_of_its_own() -> None:
    names = [f"source{i}" for i in range(60)]
    found = colours(names)
    assert list(found) == names
    assert len(set(found.values())) == 60
    assert all(len(colour) == 7 and int(colour[1:], 16) >= 0 for colour in found.values())


def test_json_holds_rows_and_texts_where_they_are_known() -> None:
    content = Content((Run("hello", 5, control=False, target=True),), 4)
    key = PieceKey("text", 2, 17, 8, 5)
    full = PieceView(key, row=RowRef("a.parquet", 9), content=content)
    value = step_json(view_of(SequenceView(0, (full, piece("code", 0, 5)), 1.5, 0.0)))
    known, unknown = json.loads(json.dumps(value))["sequences"][0]["documents"]
    assert known == {
        "source": "text",
        "epoch": 2,
        "position": 17,
        "start": 8,
        "tokens": 5,
        "patches": 0,
        "mel_frames": 0,
        "shard": "a.parquet",
        "row": 9,
        "targets": 4,
        "text": "hello",
        "media": [],
    }
    assert set(unknown) == {"source", "epoch", "position", "start", "tokens", "patches", "mel_frames"}
