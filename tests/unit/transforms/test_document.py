"""Documents against a slow and obvious builder that shares no code with the block-wise one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tokenizers

from dataloader_svc.config.schema import Config
from dataloader_svc.errors import BadSample, ConfigError, Reason
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.base import Documents, MediaSizes, RowColumns
from dataloader_svc.transforms.chat import ChatTemplate
from dataloader_svc.transforms.document import DocumentRule, assemble
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.tokenizers.base import Encoder, Encoders, Flat

from .tokenizers.test_folders import PRE_TOKENIZERS, metaspace


@pytest.fixture
def rule(tokenizer: Tokenizer) -> DocumentRule:
    control = tokenizer.control
    return DocumentRule(
        eos=control[tiny.EOS],
        media_tokens=(control[tiny.IMAGE], control[tiny.VIDEO]),
        markers=(("<image>", 0), ("<video>", 1)),
    )


def sizes(*rows: list[tuple[int, int]]) -> MediaSizes:
    """Of rows of (kind, tokens)."""
    flat = [medium for row in rows for medium in row]
    return MediaSizes(
        np.cumsum([0, *map(len, rows)]).astype(np.int64),
        np.array([kind for kind, _ in flat], np.uint8),
        np.array([tokens for _, tokens in flat], np.int32),
    )


def document(made: Documents, row: int) -> list[int]:
    return made.ids[made.id_offsets[row] : made.id_offsets[row + 1]].tolist()


def check(made: Documents, num_rows: int) -> None:
    assert made.ids.dtype == np.int32
    assert made.targets.dtype == np.uint8
    assert made.targets.shape == made.ids.shape
    assert made.id_offsets.shape == made.media_offsets.shape == (num_rows + 1,)
    assert made.id_offsets[-1] == len(made.ids)
    assert made.media_offsets[-1] == len(made.media_start) == len(made.media_index)
    empty = np.flatnonzero(np.diff(made.id_offsets) == 0).tolist()
    assert empty == sorted(made.bad)


@pytest.mark.parametrize("bos", [None, 11])
def test_texts(tokenizer: Tokenizer, bos: int | None) -> None:
    rule = DocumentRule(eos=3, bos=bos)
    texts = ["hello world", None, "", " \n", "the <image> is text here", 5, "a"]
    bad = {0: BadSample(Reason.BAD_RECORD, "told by the reader")}
    rows = RowColumns(len(texts), MediaSizes.none(len(texts)), texts=texts, bad=bad)  # type: ignore[arg-type]
    made = assemble(tokenizer, rule, rows)
    check(made, len(texts))
    assert {row: problem.reason for row, problem in made.bad.items()} == {
        0: Reason.BAD_RECORD,
        1: Reason.MISSING_FIELD,
        2: Reason.EMPTY_TEXT,
        3: Reason.EMPTY_TEXT,
        5: Reason.WRONG_TYPE,
    }
    for row in (4, 6):
        inner = tokenizer.encode_batch([str(texts[row])])[0].tolist()
        assert document(made, row) == [*([] if bos is None else [bos]), *inner, 3]
    start = [] if bos is None else [0]
    assert made.targets.tolist()[-3 + (bos is None) :] == [*start, 1, 1]


def test_all_rows_bad_and_no_rows(tokenizer: Tokenizer, rule: DocumentRule) -> None:
    for texts in ([], [None, ""]):
        for used in (rule, DocumentRule(eos=1)):
            made = assemble(tokenizer, used, RowColumns(len(texts), sizes(*[[]] * len(texts)), texts=texts))
            check(made, len(texts))
            assert len(made.ids) == 0


def slow_document(
    library: Any, text: str, media: list[tuple[int, int]], pads: list[int], eos: int
) -> list[int]:
    """Characters left to right: a marker becomes its medium, the text between is encoded."""
    if "<image>" not in text:
        text = "<image>" * sum(kind == 0 for kind, _ in media) + "\0" + text
    if "<video>" not in text:
        head, _, rest = text.rpartition("\0") if "\0" in text else ("", "", text)
        text = head + "<video>" * sum(kind == 1 for kind, _ in media) + rest
    text = text.replace("\0", "")
    left = [[tokens for kind, tokens in media if kind == k] for k in (0, 1)]
    ids: list[int] = []
    while text:
        marks = sorted((text.find(m), k) for k, m in enumerate(("<image>", "<video>")) if m in text)
        if marks and marks[0][0] == 0:
            kind = marks[0][1]
            ids += [pads[kind]] * left[kind].pop(0)
            text = text[7:]
            continue
        end = marks[0][0] if marks else len(text)
        ids += library.encode(text[:end], add_special_tokens=False).ids
        text = text[end:]
    return [*ids, eos]


def test_media_against_the_slow_builder(tokenizer: Tokenizer, rule: DocumentRule, folder: Any) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.encode_special_tokens = True
    rows = [
        ("look <image> at <video>!", [(0, 4), (1, 6)]),
        ("<image><image> two", [(0, 1), (0, 2)]),
        ("no markers", [(0, 3), (0, 2), (1, 5)]),
        ("at the end <image>", [(0, 7)]),
        ("video first <video> then <image>", [(0, 9), (1, 3)]),
        ("only the <video> is marked", [(0, 2), (1, 4)]),
        (f"typed {tiny.IMAGE} is text <image>", [(0, 2)]),
    ]
    images_only = [(text, [m for m in media if m[0] == 0]) for text, media in rows if "<video>" not in text]
    for used, batch in (
        (rule, [row for row in rows if {k for k, _ in row[1]} == {0, 1}]),
        (
            DocumentRule(rule.eos, None, rule.media_tokens, rule.markers[:1]),
            images_only,
        ),
    ):
        made = assemble(
            tokenizer,
            used,
            RowColumns(len(batch), sizes(*[m for _, m in batch]), texts=[t for t, _ in batch]),
        )
        check(made, len(batch))
        assert not made.bad
        for row, (text, media) in enumerate(batch):
            expected = slow_document(library, text, media, list(rule.media_tokens), rule.eos)
            assert document(made, row) == expected
            _check_spans(made, row, media, rule)


def _check_spans(made: Documents, row: int, media: list[tuple[int, int]], rule: DocumentRule) -> None:
    """Every placeholder lies in exactly one span of its kind, in order, and is no target."""
    first, last = made.media_offsets[row : row + 2]
    ids = document(made, row)
    targets = made.targets[made.id_offsets[row] : made.id_offsets[row + 1]]
    covered = np.zeros(len(ids), bool)
    offset = int(made.media_index[first:last].min())
    for index, start in zip(made.media_index[first:last], made.media_start[first:last], strict=True):
        kind, tokens = media[int(index) - offset]
        assert ids[start : start + tokens] == [rule.media_tokens[kind]] * tokens
        assert not covered[start : start + tokens].any()
        covered[start : start + tokens] = True
    assert last - first == len(media)
    assert (np.isin(ids, rule.media_tokens) == covered).all()
    assert (targets == ~covered).all()
    assert (np.diff(made.media_start[first:last]) > 0).all()


@pytest.mark.parametrize(
    ("text", "media", "reason"),
    [
        ("<image> <image>", [(0, 1), (1, 1)], Reason.EMPTY_TEXT),
        ("a <image> <image>", [(0, 1), (1, 1)], Reason.MARKER_MISMATCH),
        ("a <image>", [(0, 1), (0, 1), (1, 1)], Reason.MARKER_MISMATCH),
        ("a <video><video>", [(0, 1), (1, 1)], Reason.MARKER_MISMATCH),
        ("a", [(0, 1)], Reason.MISSING_FIELD),
        ("a", [], Reason.MISSING_FIELD),
        (" <image> ", [(0, 1), (1, 1)], Reason.EMPTY_TEXT),
        ("", [(0, 1), (1, 1)], Reason.EMPTY_TEXT),
        (None, [(0, 1), (1, 1)], Reason.MISSING_FIELD),
    ],
)
def test_bad_rows_leave_their_neighbours_alone(
    tokenizer: Tokenizer, rule: DocumentRule, text: str | None, media: list[tuple[int, int]], reason: Reason
) -> None:
    good = [(0, 2), (1, 3)]
    texts = ["x <image>", text, "<video> y"]
    made = assemble(tokenizer, rule, RowColumns(3, sizes(good, media, good), texts=texts))
    check(made, 3)
    assert [problem.reason for problem in made.bad.values()] == [reason]
    alone = assemble(tokenizer, rule, RowColumns(2, sizes(good, good), texts=["x <image>", "<video> y"]))
    assert made.ids.tolist() == alone.ids.tolist()
    assert made.media_start.tolist() == alone.media_start.tolist()
    assert (made.media_index[2:] - len(media)).tolist() == alone.media_index[2:].tolist()


def test_text_that_is_no_unicode(tokenizer: Tokenizer, rule: DocumentRule) -> None:
    texts = ["good", "half \ud800 pair", "fine"]
    for used, media in ((DocumentRule(eos=1), MediaSizes.none(3)), (rule, sizes(*[[(0, 1), (1, 2)]] * 3))):
        made = assemble(tokenizer, used, RowColumns(3, media, texts=texts))
        check(made, 3)
        assert {row: problem.reason for row, problem in made.bad.items()} == {1: Reason.BAD_RECORD}
        assert len(made.media_start) == (4 if media.tokens.size else 0)


def test_text_of_which_the_tokenizer_makes_nothing(tmp_path: Any) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    library.normalizer = tokenizers.normalizers.Replace("~", "")
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path, "tokenizers")
    made = assemble(tokenizer, DocumentRule(eos=0), RowColumns(2, MediaSizes.none(2), texts=["~~", "a"]))
    check(made, 2)
    assert made.bad[0].reason == Reason.EMPTY_TEXT
    assert made.ids.tolist() == [0, 0]


def configured(**changes: Any) -> Config:
    source = {"format": "jsonl", "path": "a", "text": "t", "image": "i"}
    base: dict[str, Any] = {
        "job": "j",
        "tokenizer": "t",
        "sequence_length": 64,
        "global_batch": {"sequences": 1},
        "sources": {"s": source},
        "mixture": {"schedule": [{"step": 0, "s": 1.0}]},
        "media_tokens": {"image": tiny.IMAGE},
    }
    return Config.model_validate({**base, **changes})


def test_rule_of_a_configuration(tokenizer: Tokenizer) -> None:
    config = configured(markers={"image": "[IMG]"}, bos=True)
    rule = DocumentRule.of(config, config.sources["s"], tokenizer, None)
    control = tokenizer.control
    assert rule == DocumentRule(
        control[tiny.EOS], control[tiny.BOS], (control[tiny.IMAGE], -1, -1), (("[IMG]", 0),), None
    )
    config = configured(media_tokens={"image": "<|imagepad|>"})
    with pytest.raises(ConfigError, match=r"did you mean '<\|image_pad\|>'"):
        DocumentRule.of(config, config.sources["s"], tokenizer, None)


class _Wrong:
    """Encodes as `right` does, but for texts that contain `word`: their last token is another."""

    def __init__(self, right: Encoder, word: str) -> None:
        self.right, self.word = right, word

    def encode(self, texts: Sequence[str]) -> Flat:
        ids, offsets = self.right.encode(texts)
        ids = ids.copy()
        for i, text in enumerate(texts):
            if self.word in text:
                ids[offsets[i + 1] - 1] += 1
        return ids, offsets


class TestCompared:
    """Chosen rows are encoded again by the reference, and what differs is told."""

    @pytest.fixture
    def wrong(self, tokenizer: Tokenizer) -> Tokenizer:
        encoder = _Wrong(tokenizer.reference.first, "fox")
        return replace(tokenizer, _encoders=Encoders(encoder, encoder))

    TEXTS = ("the fox", "the dog", None, "a fox", "fox fox")

    @pytest.mark.parametrize("markers", [(), (("<never>", 0),)])
    def test_texts(self, wrong: Tokenizer, markers: tuple[tuple[str, int], ...]) -> None:
        media = sizes(*[[(0, 1)]] * 5) if markers else MediaSizes.none(5)
        compare = np.array([True, True, True, False, True])
        rule = DocumentRule(eos=3, media_tokens=(5, 6), markers=markers)
        made = assemble(wrong, rule, RowColumns(5, media, texts=self.TEXTS, compare=compare))
        check(made, 5)
        assert made.compared == 3
        assert sorted(made.differing) == [0, 4]
        assert "fastokens gives" in made.differing[0]
        assert "where tokenizers has" in made.differing[0]
        assert "for 'the fox'" in made.differing[0]

    def test_nothing_is_compared_unless_asked(self, wrong: Tokenizer) -> None:
        made = assemble(wrong, DocumentRule(eos=3), RowColumns(5, MediaSizes.none(5), texts=self.TEXTS))
        assert (made.compared, made.differing) == (0, {})

    def test_of_a_book_the_beginning(self, wrong: Tokenizer) -> None:
        texts = ["the dog " * 1000 + "fox", "fox" + " the dog" * 1000]
        rows = RowColumns(2, MediaSizes.none(2), texts=texts, compare=np.array([True, True]))
        made = assemble(wrong, DocumentRule(eos=3), rows)
        assert (made.compared, list(made.differing)) == (2, [1])


def test_a_chat_with_half_a_surrogate_pair_takes_no_other_row_along(
    tokenizer: Tokenizer,
) -> None:
    chat = ChatTemplate.load(None, tokenizer)
    rule = DocumentRule(eos=3, chat=chat)
    messages = [
        [{"role": "user", "content": "fine"}, {"role": "assistant", "content": answer}]
        for answer in ("one", "half \ud800 pair", "three")
    ]
    made = assemble(tokenizer, rule, RowColumns(3, MediaSizes.none(3), messages=messages))
    check(made, 3)
    assert {row: problem.reason for row, problem in made.bad.items()} == {1: Reason.BAD_RECORD}
    alone = assemble(tokenizer, rule, RowColumns(1, MediaSizes.none(1), messages=messages[2:]))
    assert document(made, 2) == document(alone, 0)


class TestControlWords:
    """`control_words: true`: what is typed counts."""

    def test_in_text(self, tokenizer: Tokenizer) -> None:
        eos, stop = tokenizer.control[tiny.EOS], tokenizer.control[tiny.STOP]
        rule = DocumentRule(eos=eos, bos=tokenizer.control[tiny.BOS], control_words=True)
        texts = [f"a{tiny.STOP}b", f"{tiny.BOS}a{tiny.EOS}", f"{tiny.EOS}"]
        made = assemble(tokenizer, rule, RowColumns(3, MediaSizes.none(3), texts=texts))
        check(made, 3)
        a, b = (tokenizer.encode_batch([text])[0].tolist() for text in "ab")
        assert document(made, 0) == [rule.bos, *a, stop, *b, eos]
        assert document(made, 1) == [rule.bos, *a, eos], "neither twice"
        assert made.bad[2].reason == Reason.EMPTY_TEXT

    def test_a_typed_placeholder_is_a_marker(self, tokenizer: Tokenizer, rule: DocumentRule) -> None:
        rule = replace(rule, markers=(("<image>", 0),), control_words=True)
        texts = [f"x{tiny.IMAGE}y<image>", f"x{tiny.IMAGE}"]
        made = assemble(
            tokenizer, rule, RowColumns(2, sizes([(0, 2), (0, 1)], [(0, 1), (0, 1)]), texts=texts)
        )
        image = tokenizer.control[tiny.IMAGE]
        x, y = (tokenizer.encode_batch([text])[0].tolist() for text in "xy")
        assert document(made, 0) == [*x, image, image, *y, image, rule.eos]
        assert made.bad[1].reason == Reason.MARKER_MISMATCH


def test_a_space_in_front_only_where_the_library_puts_it(tmp_path: Any) -> None:
    """Behind media and turns, `first` puts none and `each` puts one; never inside a text."""
    for scheme in ("first", "always"):
        file = metaspace(tmp_path, {**PRE_TOKENIZERS["first"], "prepend_scheme": scheme})
        tokenizer = Tokenizer.load(file)
        control = tokenizer.control["<|c|>"]
        library = tokenizers.Tokenizer.from_file(str(file))

        def expected(text: str, library: Any = library) -> list[int]:
            ids: list[int] = library.encode(text, add_special_tokens=False).ids
            return ids

        rule = DocumentRule(eos=0, bos=0, media_tokens=(control, -1), markers=(("<image>", 0),))
        texts = ["the<image>the", "<image>the", "the"]
        media = sizes(*[[(0, 1)]] * 3)
        made = assemble(tokenizer, rule, RowColumns(3, media, texts=texts))
        for row, text in enumerate(["the<|c|>the", "<|c|>the", "<|c|>the"]):
            assert document(made, row) == [0, *expected(text), 0]

        (tmp_path / "chat.jinja").write_text(
            "{% for m in messages %}<|c|>{{ m.role }}:{{ m.content }}{% endfor %}"
        )
        chat = ChatTemplate.load(tmp_path / "chat.jinja", tokenizer)
        messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "the"}]
        made = assemble(
            tokenizer, DocumentRule(eos=0, chat=chat), RowColumns(1, MediaSizes.none(1), messages=[messages])
        )
        prompt = expected("<|c|>user:the<|c|>assistant:")
        assert document(made, 0)[: len(prompt)] == prompt
        answer = document(made, 0)[len(prompt) :]
        assert answer[0] == tokenizer.token_id("the"), "cut where learning begins, not where a text does"
