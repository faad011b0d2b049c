"""Trouble cases 43 to 49, and the tiny, uneven and prime-sized sources of 52 to 55, as sources."""

import json
from pathlib import Path

import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import SourceError
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SourceReader
from tests.cases.read import DATA, read


def test_43_bom_and_crlf():
    folder = "43-jsonl-bom-crlf"
    outcome = read("jsonl", f"{folder}/bom_crlf.jsonl", text="text")
    assert outcome.column("text") == ["row 0", "row 1", "row 2"]
    assert outcome.bad == {}
    assert outcome.good == read("jsonl", f"{folder}/plain.jsonl", text="text").good


def test_43_utf16_is_one_clear_error():
    with pytest.raises(SourceError, match="utf16.jsonl: is UTF-16"):
        read("jsonl", "43-jsonl-bom-crlf/utf16.jsonl", text="text")


def test_44_blank_lines():
    outcome = read("jsonl", "44-jsonl-blank-lines/blank.jsonl", text="text")
    assert outcome.column("text") == ["a", "b", "c"]
    assert outcome.bad == {}


def test_46_very_long_line():
    outcome = read("jsonl", "46-jsonl-very-long-line/long.jsonl", text="text")
    _, long, last = outcome.column("text")
    assert long == "ab " * 340_000
    assert last == "after"
    assert outcome.bad == {}


def test_47_mixed_types():
    outcome = read("jsonl", "47-jsonl-mixed-types/mixed.jsonl", text="text")
    assert outcome.column("text") == ["a", "b", "e", "f", "g"]  # g has a NaN elsewhere: allowed
    assert [(row, str(error.reason)) for (_, row), error in outcome.bad.items()] == [
        (2, "missing_field"),
        (3, "wrong_type"),
        (5, "wrong_type"),
        (7, "wrong_type"),
        (8, "wrong_type"),
        (9, "wrong_type"),
    ]


def test_47_pictures():
    """A path and a list of it are the same; rows without the key are bad: a misspelt key must not pass."""
    outcome = read("jsonl", "47-jsonl-mixed-types/mixed.jsonl", text="text", image="images")
    assert outcome.column("image") == [["x.png"], ["x.png"]]
    shard = outcome.reader.index.paths[0]
    picture = (DATA / "47-jsonl-mixed-types" / "x.png").read_bytes()
    assert outcome.reader.read_media("x.png", shard) == picture
    assert len(outcome.bad) == 9


def test_49_cut_last_row():
    outcome = read("jsonl", "49-jsonl-cut-last-row/cut.jsonl", text="text")
    assert outcome.column("text") == ["a", "c"]
    details = [error.detail.split(":")[0] for error in outcome.bad.values()]
    assert details == ["line 2", "line 4", "line 5"]
    assert outcome.reasons() == ["bad_record"] * 3


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("52-source-smaller-than-batch/tiny.jsonl", 3),
        ("54-uneven-rank-data/*.jsonl", 33),
        ("55-resume-id-stream/part{0..2}.jsonl", 101),
    ],
)
def test_52_54_55_every_id_once_an_epoch_and_from_any_position_on(path, count):
    source = Source(format="jsonl", path=path, text="text", extent=100, shuffle={"block": 500})

    def texts(reader, epoch, start=0):
        """Samples from a position on, as after a resume."""
        found = []
        first, _ = reader.order(epoch).locate(start)
        for number in range(first, reader.order(epoch).num_blocks):
            block = reader.read_block(BlockId("s", epoch, number))
            assert block.bad == {}
            found += block.columns["text"][max(0, start - block.start) :]
        return found

    unbroken = SourceReader("s", source, DATA, None, 3)
    expected = []
    for shard in unbroken.index.paths:
        expected += [json.loads(line)["text"] for line in Path(shard).read_text().splitlines()]
    assert len(expected) == count
    for epoch in (0, 1, 2):
        whole = texts(unbroken, epoch)
        assert sorted(whole) == sorted(expected)
        for start in {0, 1, count // 2, count - 1}:
            assert texts(SourceReader("s", source, DATA, None, 3), epoch, start) == whole[start:]
