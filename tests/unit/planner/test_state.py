"""A state survives its JSON exactly, stays small, and follows a changed configuration."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_client.checkpoint import Checkpoint
from dataloader_svc.config.digest import compare
from dataloader_svc.errors import StateError
from dataloader_svc.planner.pieces import Pieces
from dataloader_svc.planner.state import SourceState, State


def pieces(*rows: tuple[int, ...]) -> Pieces:
    """(source, epoch, position, start, length, patches, block[, mel frames[, media]]) each."""
    return Pieces(*np.array([(*row, 0, 0)[:9] for row in rows], np.int64).reshape(-1, 9).T.copy())


def state(**changes) -> State:
    values = {
        "seed": 17,
        "step": 5,
        "sources": {
            "a": SourceState(1, 30, 80, 900, credit=0.1 + 0.2, index="aa", bad={"empty_text": 2}),
            "b": SourceState(0, 4, 4, 50, credit=-(0.1 + 0.2), index="bb"),
        },
        "config": {"job": "1234"},
        "waiting": pieces((0, 1, 29, 0, 7, 0, 3), (1, 0, 3, 8, 9, 64, 0)),
        "age": np.array([2, 1]),
        "largest": 31,
    }
    return State(**{**values, **changes})


def test_there_and_back():
    before = state()
    after = State.from_json(before.to_json())
    assert after.to_json() == before.to_json()
    assert after.sources == before.sources  # floats too
    assert after.waiting.length.tolist() == [7, 9]
    assert after.waiting.patches.tolist() == [0, 64]
    assert after.age.tolist() == [2, 1]
    assert after.hash() == before.hash()
    assert after.ended is False
    assert State.from_json(replace(before, ended=True).to_json()).ended is True


def test_a_trainers_copy_through_its_own_json_is_the_same_state():
    text = json.dumps(json.loads(state().to_json()), indent=2, sort_keys=True)
    assert State.from_json(text).hash() == state().hash()


def test_what_audits_read_of_it():
    values = json.loads(state().to_json())
    assert values["version"] == 2
    assert values["step"] == 5
    assert values["sources"]["a"]["epoch"] == 1
    assert values["sources"]["a"]["position"] == 30
    assert values["sources"]["a"]["tokens"] == 900
    assert values["waiting"][1][:5] == ["b", 0, 3, 8, 9]


def test_the_rest_of_a_very_long_document_is_one_entry():
    rest = [(0, 0, 7, start, min(32, 1_000_000 - start), 0, 2) for start in range(64, 1_000_000, 32)]
    before = state(waiting=pieces(*rest), age=np.ones(len(rest), np.int64))
    values = json.loads(before.to_json())
    assert values["waiting"] == [["a", 0, 7, 64, 999_936, 0, 2, 1, 32]]
    after = State.from_json(before.to_json())
    assert after.waiting.start.tolist() == before.waiting.start.tolist()
    assert after.waiting.length.tolist() == before.waiting.length.tolist()


@pytest.mark.parametrize(
    ("rows", "ages"),
    [
        (
            [(0, 0, 7, 0, 8, 0, 2), (0, 0, 7, 8, 8, 0, 2), (0, 0, 7, 16, 3, 0, 2), (0, 0, 7, 19, 3, 0, 2)],
            [1] * 4,
        ),
        ([(0, 0, 7, 0, 8, 0, 2), (0, 0, 7, 16, 8, 0, 2)], [1, 1]),  # a hole
        ([(0, 0, 7, 0, 8, 0, 2), (0, 0, 7, 8, 9, 0, 2)], [1, 1]),  # the second is longer
        ([(0, 0, 7, 0, 8, 0, 2), (0, 0, 7, 8, 8, 0, 2)], [1, 2]),
        ([(0, 0, 7, 0, 8, 0, 2), (0, 0, 8, 8, 8, 0, 2)], [1, 1]),
        ([(0, 0, 7, 0, 8, 4, 2), (0, 0, 7, 8, 8, 4, 2)], [1, 1]),  # media
    ],
)
def test_only_real_runs_are_joined(rows, ages):
    before = state(waiting=pieces(*rows), age=np.array(ages))
    after = State.from_json(before.to_json())
    for column in ("source", "epoch", "position", "start", "length", "patches", "block"):
        assert getattr(after.waiting, column).tolist() == getattr(before.waiting, column).tolist()
    assert after.age.tolist() == ages


FIRST_VERSION = """{"version":1,"seed":7,"step":5,"sources":{"a":{"epoch":1,"position":30,"samples":90,
"tokens":900,"index":"00ff00ff00ff00ff","shards":4,"before":[[0,3,"0123456789abcdef"]],"bad":{"empty_text":2}},
"b":{"epoch":0,"position":4,"samples":5,"tokens":60,"index":"feedfeedfeedfeed","shards":1},"c":{"epoch":0,
"position":0,"samples":0,"tokens":0},"d":{"epoch":0,"position":0,"samples":0,"tokens":0,"index":"no digits"}},
"credits":{"a":-3.25,"b":0.1,"c":3.15,"d":0.0},"waiting":[["a",1,29,0,7,0,2,2,7],["b",0,3,8,9,64,0,1,9,0,2]],
"largest":50,"config":{"cccc-0003":["source/c","source/d"],"job":"1234-5678","source/a":"aaaa-0001",
"source/b":"bbbb-0002","was/b":"old"}}"""


def test_a_state_of_the_first_version_is_the_same_state_for_ever():
    """Its hash as well, by which a session that began under it knows its ranks again."""
    first = State.from_json(FIRST_VERSION)
    assert first.hash() == "38f7c4a9ebe1663e3ef0994f1e94bd86"  # as that version had it
    assert first.sources["a"] == SourceState(
        *(1, 30, 90, 900, -3.25, "00ff00ff00ff00ff", {"empty_text": 2}, 4, ((0, 3, "0123456789abcdef"),))
    )
    assert first.sources["d"].index == "no digits"
    assert first.config["source/b"] == "bbbb-0002"
    text = first.to_json()
    assert '"version":2' in text
    assert "00ff00ff" not in text
    assert "bbbb" not in text
    for written in (text, json.dumps(json.loads(text), sort_keys=True)):
        again = State.from_json(written)
        assert again.to_json() == text
        assert again.hash() == first.hash()
        assert (again.sources, again.config) == (first.sources, first.config)


@given(
    digests=st.lists(
        st.from_regex(r"[0-9a-f]{0,17}", fullmatch=True)
        | st.from_regex(r"([0-9a-f]{4}-){0,14}[0-9a-f]{1,4}", fullmatch=True)
        | st.text(st.characters(codec="utf-8"), max_size=9).filter(lambda text: not text.startswith("=")),
        min_size=2,
        max_size=6,
    )
)
def test_any_digest_comes_back_as_it_was(digests):
    sources = {f"{n}": SourceState(index=digest, shards=n) for n, digest in enumerate(digests)}
    config = {f"source/{n}": digest for n, digest in enumerate(digests)}
    before = State(1, 0, sources, config)
    after = State.from_json(before.to_json())
    assert (after.sources, after.config) == (before.sources, before.config)


def test_three_hundred_sources_that_all_differ_fit_into_what_is_promised():
    sources = {
        f"source-{n:03}": SourceState(3, 10**7 + n, 2 * 10**7, 10**10, -n / 7, f"{n:016x}", shards=128)
        for n in range(306)
    }
    config = {f"source/{name}": "-".join([f"{n:04x}"] * 13) for n, name in enumerate(sources)}
    late = state(sources=sources, config=config, waiting=pieces(), age=np.empty(0, np.int64))
    assert len(json.dumps(json.loads(late.to_json()))) < 62 * 1024


def test_three_hundred_sources_take_kilobytes():
    sources = {
        f"source-{n:03}": SourceState(
            3, 12_345_678, 9_876_543, 9_876_543_210, 1234.5678901234567, "0123456789ab"
        )
        for n in range(306)
    }
    text = state(sources=sources, waiting=pieces(), age=np.empty(0, np.int64)).to_json()
    assert len(text) < 48 * 1024


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no state_dict of this service"),
        ("[1]", "no state_dict of this service"),
        ("{}", "lacks a version"),
        ('{"version": 3}', "has version 3; this service reads versions 1 and 2"),
        ('{"version": 1}', "damaged .*KeyError.*use an older checkpoint"),
        ('{"version": 1, "sources": []}', "damaged"),
        (state().to_json().replace('"credits":[', '"credits":[0.5,'), "damaged .*ValueError"),
        (state().to_json().replace('"index":[0,"=qg"]', '"index":[0,"=q"]'), "damaged .*Error"),
        (state().to_json().replace('"index":[0,"=qg"]', '"index":"=qg"'), "'=qg' is no digest"),
    ],
)
def test_what_is_no_state(text, message):
    with pytest.raises(StateError, match=message):
        State.from_json(text)


def test_sources_come_and_go():
    after = state().adapted(("b", "c"), {"job": "1234", "source/c": "5678"}, 32)
    assert after.names == ("b", "c")
    assert after.sources["b"].position == 4
    assert after.sources["c"] == SourceState(credit=after.sources["c"].credit)
    assert sum(source.credit for source in after.sources.values()) == pytest.approx(0)
    assert after.waiting.source.tolist() == [0]  # b's piece; a's went with it
    assert after.waiting.position.tolist() == [3]
    assert after.age.tolist() == [1]
    assert after.config == {"job": "1234", "source/c": "5678"}


@pytest.mark.parametrize(
    ("before", "now", "others"),
    [
        ({"job": "1"}, {"job": "2"}, {"a", "b"}),
        (
            {"job": "1", "source/a": "1", "source/b": "1"},
            {"job": "1", "source/a": "2", "source/b": "1"},
            {"a"},
        ),
        ({"job": "1"}, {"job": "1", "source/b": "1"}, set()),
    ],
)
def test_what_waits_of_a_source_that_is_read_otherwise_is_dropped(before, now, others):
    """By force: the pieces are of documents that are others, or none, now; the digest of the files too."""
    two = pieces((0, 1, 29, 0, 5, 0, 3), (1, 0, 3, 0, 5, 0, 0))
    sources = {name: SourceState(position=30, index="abc") for name in ("a", "b")}
    state_before = state(sources=sources, waiting=two, age=np.array([2, 1]), config=before)
    after = state_before.adapted(("a", "b"), now, 32)
    kept = [number for number, name in enumerate(("a", "b")) if name not in others]
    assert after.waiting.source.tolist() == kept
    assert after.age.tolist() == [(2, 1)[number] for number in kept]
    assert {name for name, source in after.sources.items() if not source.index} == others
    assert {source.position for source in after.sources.values()} == {30}


def test_shorter_sequences_cut_what_waits():
    before = state(waiting=pieces((0, 1, 29, 8, 20, 0, 3)), age=np.array([2]))
    after = before.adapted(("a", "b"), {}, 8)
    assert after.waiting.start.tolist() == [8, 16, 24]
    assert after.waiting.length.tolist() == [8, 8, 4]
    assert after.age.tolist() == [2, 2, 2]


def test_a_waiting_picture_is_not_cut():
    before = state(waiting=pieces((1, 0, 3, 0, 20, 64, 0)), age=np.array([1]))
    with pytest.raises(StateError, match=r"'b' with media has 20 tokens, and sequence_length is now 8"):
        before.adapted(("a", "b"), {}, 8)


def test_a_waiting_pair_is_not_cut():
    waits = pieces((0, 1, 29, 0, 8, 0, 3), (1, 0, 3, 0, 20, 0, 0))
    before = state(waiting=waits, age=np.array([1, 1]))
    with pytest.raises(StateError, match=r"pair of 'b' has 20 tokens, and sequence_length is now 8"):
        before.adapted(("a", "b"), {}, 8, frozenset({"b"}))
    assert before.adapted(("a", "b"), {}, 8, frozenset({"a"})).waiting.length.tolist() == [8, 8, 8, 4]


def test_waiting_sound_goes_there_and_back_uncut():
    clips = [(0, 1, 29, 0, 7, 0, 3, 28), (0, 1, 29, 7, 7, 0, 3, 28), (0, 1, 30, 0, 7, 0, 3, 0)]
    before = state(waiting=pieces(*clips), age=np.zeros(3, np.int64))
    assert json.loads(before.to_json())["waiting"] == [
        ["a", 1, 29, 0, 7, 0, 3, 0, 7, 28],
        ["a", 1, 29, 7, 7, 0, 3, 0, 7, 28],
        ["a", 1, 30, 0, 7, 0, 3, 0, 7],
    ]
    after = State.from_json(before.to_json())
    assert after.waiting.frames.tolist() == [28, 28, 0]
    assert after.to_json() == before.to_json()
    with pytest.raises(StateError, match="document of 'a' with media has 7 tokens"):
        after.adapted(("a", "b"), {}, 6)


def test_the_number_of_waiting_media_goes_there_and_back():
    """Beside sound or without; what has none is written as before, and what was never counted stays so."""
    before = state(
        waiting=pieces((0, 1, 29, 0, 7, 64, 3, 0, 2), (0, 1, 30, 0, 7, 0, 3, 28, 1), (0, 1, 31, 0, 7, 64, 3)),
        age=np.zeros(3, np.int64),
    )
    assert json.loads(before.to_json())["waiting"] == [
        ["a", 1, 29, 0, 7, 64, 3, 0, 7, 0, 2],
        ["a", 1, 30, 0, 7, 0, 3, 0, 7, 28, 1],
        ["a", 1, 31, 0, 7, 64, 3, 0, 7],
    ]
    after = State.from_json(before.to_json())
    assert after.waiting.media.tolist() == [2, 1, 0]
    assert after.waiting.has_media.tolist() == [True] * 3
    assert after.to_json() == before.to_json()


NAMES = {"job": "1234", "source/a": "aaaa", "source/b": "bbbb"}


def test_a_renamed_source_keeps_all_that_it_has():
    before = state(config=NAMES)
    now = {"job": "1234", "source/z": "aaaa", "was/z": "a", "source/b": "bbbb"}
    after = before.renamed(now)
    assert after.names == ("b", "z")
    assert after.sources["z"] == before.sources["a"]
    assert after.sources["b"] == before.sources["b"]
    assert after.waiting.source.tolist() == [1, 0]  # they were of a and of b
    assert after.waiting.position.tolist() == before.waiting.position.tolist()
    assert dict(after.config) == now
    assert after.adapted(("b", "z"), now, 64) is after  # to the last bit
    again = {"job": "1234", "source/c": "aaaa", "was/c": "a", "source/b": "bbbb"}
    assert after.renamed(again).sources["c"] == before.sources["a"]
    assert after.renamed(NAMES).to_json() == before.to_json()
    assert before.renamed(NAMES) is before


def test_a_first_name_that_was_left_out_stays_in_the_state():
    """So that the comparison with the configuration names it."""
    now = {"job": "1234", "source/z": "aaaa", "was/z": "a", "source/b": "bbbb"}
    without = {entry: value for entry, value in now.items() if entry != "was/z"}
    after = state(config=NAMES).renamed(now)
    assert after.renamed(without) is after
    assert compare(after.config, without) == ["sources.z.was"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"source/b": "bbbb", "was/b": "a"}, "sources.b.was is 'a', but the 'b' of the state has always"),
        ({"source/c": "bbbb", "was/c": "z"}, "sources.c.was is 'z', and 'z' was 'a' first.*write 'a'"),
    ],
)
def test_names_that_mean_two_sources_are_refused(names, message):
    before = state(config=NAMES).renamed({"source/z": "aaaa", "was/z": "a", "source/b": "bbbb"})
    with pytest.raises(StateError, match=message):
        before.renamed(names)


def test_a_checkpoint_of_306_sources_is_small_and_the_same_on_every_rank():
    """As trainers write it, with numbers of a late step and what waits; ranks differ in nothing."""
    names = [f"source-{number:03d}" for number in range(306)]
    sources = {
        name: SourceState(
            3, 10_000_000 + n, 20_000_000 + n, 10**10 + n, credit=-n / 7, index=f"{n:016x}", shards=128
        )
        for n, name in enumerate(names)
    }
    hashes = {f"source/{name}": "-".join(["1a2b"] * 13) for name in names}
    waits = pieces(*((n, 3, 10_000_000, 0, 30, 0, 70_000) for n in range(100)))
    late = State(17, 90_000, sources, {"job": "ab12", **hashes}, waiting=waits, age=np.ones(100, np.int64))
    assert State.from_json(late.to_json()).config == late.config
    ranks = [json.loads(late.to_json()) for _ in range(2)]  # what comes in each rank's frame
    states = [Checkpoint(service, 90_000, 0, 8, dp, 1).to_dict() for dp, service in enumerate(ranks)]
    texts = [json.dumps(state) for state in states]
    assert texts[0] == texts[1]
    assert len(texts[0]) < 64 * 1024
    assert states[0]["service"] is ranks[0]  # nothing is copied


def test_hashes_that_sources_share_stand_there_once():
    config = {"job": "1", "source/a": "x-y", "source/b": "x-z", "source/c": "x-y", "was/c": "k"}
    before = state(config=config)
    values = json.loads(before.to_json())
    assert values["config"] == {"job": "1", "was/c": "k", "x-y": ["source/a", "source/c"]}
    assert values["sources"]["b"]["hash"] == "x-z"
    assert dict(State.from_json(before.to_json()).config) == config
    old = json.loads(before.to_json()) | {"config": config}  # as states of before have it
    assert State.from_json(json.dumps(old)).hash() == before.hash()
