"""What of a preference pair is the prompt, and two documents that become one sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import Documents
from dataloader_svc.transforms.pairs import PairRule, joined, sides

HH = "\n\nHuman: {}\n\nAssistant:{}"


def said(*contents: str) -> list[dict[str, Any]]:
    """A chat of user and assistant in turn."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]


def texts(chosen: str, rejected: str, prompt: str | None = None, **rule: Any) -> list[tuple[str, str]]:
    """(prompt, completion) of both sides."""
    values = {"chosen": chosen, "rejected": rejected} | ({} if prompt is None else {"prompt": prompt})
    return [
        (side.whole[: side.prompt], side.whole[side.prompt :])
        for side in sides(values, PairRule(True, **rule))
    ]


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt", "answers"),
    [
        ("the end is near", "the end is far", "the end is", (" near", " far")),
        ("the end is near", "the end is never", "the end is", (" near", " never")),  # words stay whole
        ("a b", "a", "", ("a b", "a")),
        ("x y  z", "x y  w", "x y", ("  z", "  w")),
        ("yes", "no", "", ("yes", "no")),
        ("猫 は", "猫 が", "猫", (" は", " が")),
    ],
)
def test_without_a_prompt_it_is_the_words_in_common(
    chosen: str, rejected: str, prompt: str, answers: tuple[str, str]
) -> None:
    assert texts(chosen, rejected) == [(prompt, answer) for answer in answers]
    assert texts(rejected, chosen) == [(prompt, answer) for answer in reversed(answers)]


def test_a_prompt_of_its_own_is_put_in_front_as_it_is() -> None:
    assert texts(" red", " blue", "the sky is") == [("the sky is", " red"), ("the sky is", " blue")]
    assert texts("same a", "same b", "") == [("", "same a"), ("", "same b")]


def test_the_end_of_the_prompt_can_be_named() -> None:
    turns = HH.format("hi", " hello") + HH.format("and?", "")
    chosen, rejected = turns + " I think so", turns + " I doubt it\n\nAssistant: twice"
    assert texts(chosen, rejected, prompt_end="\n\nAssistant:") == [
        (turns, " I think so"),
        (turns, " I doubt it\n\nAssistant: twice"),  # the last one of what both share
    ]
    with pytest.raises(BadSample, match=r"'Bot:' \(prompt_end\) is not in what chosen and rejected have in"):
        texts(chosen, rejected, prompt_end="Bot:")


@pytest.mark.parametrize(
    ("values", "reason", "words"),
    [
        ({"chosen": "a", "rejected": "a"}, Reason.BAD_RECORD, "are the same"),
        ({"chosen": "a", "rejected": " "}, Reason.EMPTY_TEXT, "rejected: text is empty or blank"),
        ({"chosen": "", "rejected": "b", "prompt": "p"}, Reason.EMPTY_TEXT, "chosen: text is empty"),
    ],
)
def test_a_text_that_says_nothing(values: dict[str, str], reason: Reason, words: str) -> None:
    with pytest.raises(BadSample, match=words) as caught:
        sides(values, PairRule(True))
    assert caught.value.reason == reason


def test_a_completion_that_is_all_in_common() -> None:
    with pytest.raises(BadSample, match="is what the other begins with"):
        texts("the end:", "the end: never", prompt_end="end:")


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected", "count"),
    [
        (None, said("q", "a"), said("q", "b"), 1),
        (None, said("q", "a", "q2", "b"), said("q", "a", "q2", "c"), 3),
        (None, said("q", "a", "more"), said("q", "b"), 1),
        (None, said("q", "a")[1:], said("q", "b")[1:], 0),
        (said("q"), said("q", "a")[1:], said("q", "b")[1:], 1),
        (said("q"), said("q", "a"), said("q", "b"), 1),  # repeated in both
        (said("q", "a", "q2"), [*said("x", "b")[1:]], [*said("x", "c")[1:]], 3),
    ],
)
def test_prompts_of_messages(prompt: Any, chosen: Any, rejected: Any, count: int) -> None:
    values = {"chosen": chosen, "rejected": rejected} | ({"prompt": prompt} if prompt else {})
    first, second = sides(values, PairRule(False))
    assert (first.prompt, second.prompt) == (count, count)
    assert first.whole[:count] == second.whole[:count] == (prompt or chosen[:count])
    assert first.whole[count:] == chosen[-(len(first.whole) - count) :]
    assert second.whole[count:] == rejected[-(len(second.whole) - count) :]


def test_a_prompt_repeated_on_one_side_only_is_said_twice_there() -> None:
    """Whoever repeats a question means it; only what is in both is the prompt once more."""
    first, second = sides(
        {"prompt": said("q"), "chosen": said("q", "a"), "rejected": said("", "b")[1:]}, PairRule(False)
    )
    assert len(first.whole) == 3
    assert len(second.whole) == 2


def test_messages_of_which_one_side_has_none_of_its_own() -> None:
    with pytest.raises(BadSample, match="is what the other begins with") as caught:
        sides({"chosen": said("q", "a"), "rejected": said("q", "a", "more")}, PairRule(False))
    assert caught.value.reason == Reason.BAD_MESSAGES


# ---- two documents as one sample

Media = list[tuple[int, int]]
"""(first placeholder, placeholders) of each medium of a document."""


def documents(
    sizes: list[int], prompts: list[int], media: dict[int, Media] | None = None, bad: Any = None
) -> tuple[Documents, np.ndarray]:
    """Documents whose ids count up from 100 * number; everything behind the prompt is a target."""
    media = media or {}
    ids = [100 * number + np.arange(size) for number, size in enumerate(sizes)]
    targets = [(np.arange(size) >= prompt) for size, prompt in zip(sizes, prompts, strict=True)]
    spans = [span for number in range(len(sizes)) for span in media.get(number, [])]
    counts = [len(media.get(number, [])) for number in range(len(sizes))]
    made = Documents(
        ids=np.concatenate(ids).astype(np.int32),
        id_offsets=np.cumsum([0, *sizes]),
        targets=np.concatenate(targets).astype(np.uint8),
        media_offsets=np.cumsum([0, *counts]).astype(np.int32),
        media_index=np.arange(len(spans)),
        media_start=np.array([start for start, _ in spans], np.int32),
        bad=bad or {},
        differing={3: "other ids"} if len(sizes) > 3 else {},
    )
    return made, np.array([tokens for _, tokens in spans], np.int32)


def test_media_of_the_second_document_stand_behind_the_first() -> None:
    made, tokens = documents([6, 5, 4, 3], [2, 2, 2, 2], {0: [(0, 2)], 1: [(1, 2)], 2: [], 3: [(0, 1)]})
    pairs = joined(made, tokens, None)
    assert pairs.id_offsets.tolist() == [0, 11, 18]
    assert pairs.ids.tolist() == made.ids.tolist()
    assert pairs.targets.tolist() == made.targets.tolist()
    assert pairs.second is not None
    assert pairs.second.tolist() == [6, 4]
    assert pairs.media_offsets.tolist() == [0, 2, 3]
    assert pairs.media_start.tolist() == [0, 7, 4]
    assert pairs.differing == {1: "other ids"}


def test_one_bad_side_takes_the_other_along() -> None:
    gone = BadSample(Reason.MISSING_FILE, "a.png")
    made, tokens = documents([4, 0, 5, 5], [1] * 4, {0: [(0, 1)], 3: [(2, 2)]}, {1: gone})
    pairs = joined(made, tokens, None)
    assert pairs.bad[0].detail == "rejected: a.png"
    assert pairs.bad[0].reason == Reason.MISSING_FILE
    assert pairs.ids.tolist() == [*range(200, 205), *range(300, 305)]
    assert pairs.media_index.tolist() == [1]
    assert pairs.media_start.tolist() == [7]
    assert pairs.second is not None
    assert pairs.second.tolist() == [0, 5]


def test_what_is_wrong_with_both_names_no_side() -> None:
    gone = BadSample(Reason.MISSING_FIELD, "no field 'chosen'")
    made, tokens = documents([0, 0], [0, 0], bad={0: gone, 1: gone})
    assert joined(made, tokens, None).bad[0] is gone


@pytest.mark.parametrize(
    ("sizes", "limit", "left"),
    [
        ([10, 10], 20, [10, 10]),
        ([11, 10], 20, [10, 10]),
        ([30, 4], 20, [16, 4]),  # the longer one gives
        ([4, 30], 20, [4, 16]),
        ([30, 40], 20, [10, 10]),
        ([30, 40], 21, [10, 10]),
        ([12, 9], 20, [11, 9]),
    ],
)
def test_the_longer_side_is_cut_first(sizes: list[int], limit: int, left: list[int]) -> None:
    made, tokens = documents(sizes, [2, 2])
    pairs = joined(made, tokens, limit)
    assert not pairs.bad
    assert pairs.ids.tolist() == [*range(left[0]), *range(100, 100 + left[1])]
    assert pairs.second is not None
    assert pairs.second.tolist() == [left[0]]


def test_a_cut_goes_in_front_of_a_picture() -> None:
    made, tokens = documents([30, 30], [2, 2], {0: [(4, 2), (8, 4)], 1: [(0, 2), (10, 4)]})
    pairs = joined(made, tokens, 20)
    assert pairs.id_offsets.tolist() == [0, 18]
    assert pairs.media_index.tolist() == [0, 2]
    assert pairs.media_start.tolist() == [4, 8]


def test_a_pair_of_which_too_little_is_left() -> None:
    made, tokens = documents([30, 30, 6, 6], [10, 2, 1, 1])
    pairs = joined(made, tokens, 20)
    assert pairs.bad[0].reason == Reason.TOO_LONG
    assert "30 and 30 tokens, sequence_length 20 for both: no token of chosen is left" in pairs.bad[0].detail
    assert pairs.id_offsets.tolist() == [0, 0, 12]
    made.ids[30:60] = made.ids[:30]  # until the end alike
    made.ids[59] = 7
    made.targets[:60] = 1
    assert "the same is left of both" in joined(made, tokens, 20).bad[0].detail


@given(st.data())
def test_pairs_of_any_size(data: st.DataObject) -> None:
    """Against a loop over tokens: what is kept are beginnings, whole media, and never more than the limit."""
    count = data.draw(st.integers(1, 4))
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=2 * count, max_size=2 * count))
    media: dict[int, Media] = {}
    for number, size in enumerate(sizes):
        at = data.draw(st.integers(0, 6))
        while at + (tokens := data.draw(st.integers(1, 6))) <= size:
            media.setdefault(number, []).append((at, tokens))
            at += tokens + data.draw(st.integers(0, 9))
    made, tokens = documents(sizes, [0] * len(sizes), media)
    limit = data.draw(st.none() | st.integers(8, 60))
    pairs = joined(made, tokens, limit)
    assume(len(pairs.bad) < count)
    assert pairs.second is not None
    for pair in range(count):
        first, last = pairs.id_offsets[pair : pair + 2].tolist()
        if pair in pairs.bad:
            assert first == last
            continue
        middle = first + int(pairs.second[pair])
        low, high = pairs.media_offsets[pair : pair + 2].tolist()
        found = [(int(pairs.media_index[m]), int(pairs.media_start[m])) for m in range(low, high)]
        expected = []
        for side, (start, stop) in enumerate(((first, middle), (middle, last))):
            number = 2 * pair + side
            assert 0 < stop - start <= sizes[number]
            assert pairs.ids[start:stop].tolist() == [100 * number + token for token in range(stop - start)]
            before = sum(len(media.get(other, [])) for other in range(number))
            for index, (at, size) in enumerate(media.get(number, [])):
                assert not at < stop - start < at + size, "no medium is cut"
                if at + size <= stop - start:
                    expected.append((before + index, start - first + at))
        assert found == expected
        whole = sizes[2 * pair] + sizes[2 * pair + 1]
        assert last - first <= (whole if limit is None else limit)
        if limit is None or whole <= limit:
            assert last - first == whole
