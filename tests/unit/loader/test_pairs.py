"""Preference pairs in the loader: what is learnt of them, pictures of both sides, long ones, torn ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_svc.errors import Reason, StateError
from dataloader_svc.loader.decode import PieceRange, decode, take
from dataloader_svc.loader.read import HeldBlock, probe_columns, read_block
from dataloader_svc.loader.rules import sample_rule
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer

from .conftest import configured, write_jsonl

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>"
    "{% endif %}{% endfor %}"
)


class Read:
    """The first block of a JSONL source of preference pairs."""

    def __init__(
        self, folder: Path, rows: list[Any], pool: ThreadPoolExecutor, length: int = 512, **source: Any
    ) -> None:
        write_jsonl(folder / "pairs.jsonl", rows)
        values = {"format": "jsonl", "path": "pairs.jsonl", "shuffle": False, **source}
        mixture = {"schedule": [{"step": 0, "s": 1}]}
        config = configured(sources={"s": values}, mixture=mixture, sequence_length=length)
        self.tokenizer = Tokenizer.load(folder / "tokenizer")
        self.reader = SourceReader("s", config.sources["s"], folder, None, 0)
        self.rule = sample_rule(config, "s", folder, self.tokenizer)
        self.pool = pool
        self.held: HeldBlock = read_block(self.reader, BlockId("s", 0, 0), self.rule, pool)

    def sides(self, row: int) -> list[slice]:
        """Where in the ids the two documents of a pair are."""
        assert self.held.second is not None
        first, last = self.held.id_offsets[row : row + 2].tolist()
        middle = first + int(self.held.second[row])
        assert first < middle < last
        return [slice(first, middle), slice(middle, last)]

    def texts(self, row: int) -> list[str]:
        return [self.tokenizer.decode(self.held.ids[side].tolist()) for side in self.sides(row)]

    def learnt(self, row: int) -> list[str]:
        """The text of the tokens that are targets, by side."""
        found = []
        for side in self.sides(row):
            targets = self.held.targets[side].astype(bool)
            found.append(self.tokenizer.decode(self.held.ids[side][targets].tolist()))
        return found

    def reasons(self) -> dict[int, str]:
        return {row.position: row.reason for row in self.held.bad}


def said(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]


def test_texts_learn_the_completion_and_its_end(folder: Path, pool: ThreadPoolExecutor) -> None:
    rows = [
        {"prompt": "the dog is", "chosen": " brown", "rejected": " blue"},
        {"prompt": "", "chosen": "the end", "rejected": "no"},
        {"prompt": "<|end|> typed", "chosen": " <|end|>", "rejected": " x"},
    ]
    read = Read(folder, rows, pool, preference={"style": "text", "prompt": "prompt"})
    assert not read.reasons()
    assert read.texts(0) == [f"the dog is brown{tiny.EOS}", f"the dog is blue{tiny.EOS}"]
    assert read.learnt(0) == [f" brown{tiny.EOS}", f" blue{tiny.EOS}"]
    assert read.learnt(1) == [f"the end{tiny.EOS}", f"no{tiny.EOS}"]
    ids = read.held.ids[read.sides(2)[0]].tolist()
    assert ids.count(read.tokenizer.control[tiny.EOS]) == 1, "control words typed in a pair stay text"


def test_the_prompt_is_tokenized_as_a_model_is_asked_it(folder: Path, pool: ThreadPoolExecutor) -> None:
    """In one piece, so that both sides begin with the same tokens, whatever follows."""
    rows = [{"prompt": "the quick br", "chosen": "own fox", "rejected": "eak"}]
    read = Read(folder, rows, pool, preference={"style": "text", "prompt": "prompt"})
    asked = read.tokenizer.encode_batch(["the quick br"])[0].tolist()
    for side in read.sides(0):
        assert read.held.ids[side][: len(asked)].tolist() == asked
        assert read.held.targets[side].tolist() == [0] * len(asked) + [1] * (
            side.stop - side.start - len(asked)
        )


@pytest.mark.parametrize("template", [None, TURNS])
def test_chats_learn_what_stands_behind_the_prompt(
    folder: Path, pool: ThreadPoolExecutor, template: str | None
) -> None:
    source: dict[str, Any] = {}
    if template is not None:
        (folder / "turns.jinja").write_text(template)
        source["chat_template"] = "turns.jinja"
    earlier = said("hello", "hi", "and")
    rows = [
        {"prompt": earlier, "chosen": said("", "good")[1:], "rejected": said("", "bad")[1:]},
        {"prompt": earlier, "chosen": said("", "a", "b", "c")[1:], "rejected": "d"},
        {
            "prompt": [*earlier, {"role": "assistant", "content": ""}, *said("so")],
            "chosen": "a",
            "rejected": "d",
        },
        {"prompt": earlier, "chosen": said("only a user"), "rejected": "d"},
    ]
    read = Read(folder, rows, pool, preference={"style": "messages", "prompt": "prompt"}, **source)
    end = "<|im_end|>" + (tiny.EOS if template else "")  # learnt where it ends the assistant's turn
    assert read.learnt(0) == [f"good{end}", f"bad{end}"]
    assert read.learnt(1) == [f"a<|im_end|>c{end}", f"d{end}"]
    assert read.learnt(2) == [f"a{end}", f"d{end}"]
    assert "assistant\nhi<|im_end|>" in read.texts(0)[0]
    assert read.reasons() == {3: Reason.BAD_MESSAGES}
    assert "chosen: no assistant message with content behind the 3 of the prompt" in read.held.bad[0].detail


def test_pictures_are_both_sides_and_come_decoded_twice(folder: Path, pool: ThreadPoolExecutor) -> None:
    own = {"type": "image_url", "image_url": {"url": "pictures/1.png"}}
    other = {"type": "image_url", "image_url": {"url": "pictures/2.png"}}
    rows = [
        {
            "image": "pictures/0.png",
            "chosen": said("<image> what?", "a"),
            "rejected": said("<image> what?", "b"),
        },
        {"chosen": said([own], "a"), "rejected": said([own, other], "b")},
        {"image": "pictures/cut.png", "chosen": said("<image>", "a"), "rejected": said("<image>", "b")},
    ]
    read = Read(folder, rows, pool, image="image", preference={"style": "messages"})
    assert read.reasons() == {2: Reason.TRUNCATED}
    held = read.held
    media = held.media
    assert media.offsets.tolist() == [0, 2, 5, 5]
    assert media.data == tuple(f"pictures/{n}.png" for n in (0, 0, 1, 1, 2))
    for row in (0, 1):
        first, length = int(held.id_offsets[row]), int(np.diff(held.id_offsets)[row])
        piece = take(held, PieceRange(row, 0, length), read.reader, read.rule)
        image = read.tokenizer.control[tiny.IMAGE]
        places = np.flatnonzero(held.ids[first : first + length] == image)
        spans = [range(m.start, m.start + m.patches // 4) for m in piece.media]
        assert [place for span in spans for place in span] == places.tolist()
        frame = decode([piece], 14, pool)
        assert frame.arrays["second"].tolist() == [held.second[row]]  # type: ignore[index]
        first_two = piece.media[0].patches, piece.media[1].patches
        if row == 0:
            assert first_two[0] == first_two[1]
            pixels = frame.arrays["pixels"]
            assert np.array_equal(pixels[: first_two[0]], pixels[first_two[0] :])
    probe = probe_columns(held)
    assert probe.tokens.tolist() == np.diff(held.id_offsets).tolist()
    assert probe.patches[2] == 0


def test_long_pairs_are_cut_to_the_sequence_and_no_others(folder: Path, pool: ThreadPoolExecutor) -> None:
    rows = [
        {"prompt": "the", "chosen": " fox" * 60, "rejected": " dog"},
        {"prompt": "the " * 60, "chosen": "fox", "rejected": "dog"},
        {"prompt": "the", "chosen": " fox", "rejected": " dog"},
    ]
    preference = {"style": "text", "prompt": "prompt"}
    whole = Read(folder, rows, pool, 40, preference=preference, too_long="drop")
    assert not whole.reasons(), "which of them are too long is for the planner to say"
    sizes = [[side.stop - side.start for side in whole.sides(row)] for row in range(3)]
    read = Read(folder, rows, pool, 40, preference=preference)
    assert read.reasons() == {1: Reason.TOO_LONG}
    assert [side.stop - side.start for side in read.sides(0)] == [40 - sizes[0][1], sizes[0][1]]
    assert read.texts(0)[0] == "the" + " fox" * ((40 - sizes[0][1] - 1) // ((sizes[0][0] - 2) // 60))
    assert read.texts(2) == whole.texts(2)


def test_a_torn_pair_is_refused(folder: Path, pool: ThreadPoolExecutor) -> None:
    rows = [{"prompt": "the", "chosen": " fox", "rejected": " dog"}]
    read = Read(folder, rows, pool, preference={"style": "text", "prompt": "prompt"})
    length = len(read.held.ids)
    for start, size in ((0, length - 1), (1, length - 1), (int(read.held.second[0]), 2)):  # type: ignore[index]
        with pytest.raises(StateError, match="of a preference pair, which has"):
            take(read.held, PieceRange(0, start, size), read.reader, read.rule)


def test_what_a_function_made_of_a_pair(
    folder: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "row['chosen'] + row['prompt'] if row['n'] else ''"
    code = f"def change(row):\n    row['chosen'] = {value}\n    return row\n"
    (folder / "pairs_of_test.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    rows = [{"prompt": "p", "chosen": " a", "rejected": " b", "n": n} for n in (1, 0)]
    transforms = [{"map": {"function": "pairs_of_test:change", "columns": ["n"]}}]
    read = Read(folder, rows, pool, transforms=transforms, preference={"style": "text", "prompt": "prompt"})
    assert read.texts(0) == [f"p ap{tiny.EOS}", f"p b{tiny.EOS}"]
    assert read.reasons() == {1: Reason.EMPTY_TEXT}


@pytest.mark.parametrize("style", ["text", "messages"])
@pytest.mark.parametrize("value", [None, 5, ["a"], {"role": 1}, [{"role": "user"}], []])
def test_what_is_no_completion(folder: Path, pool: ThreadPoolExecutor, style: str, value: Any) -> None:
    rows = [{"chosen": value, "rejected": said("q", "a")}, {"chosen": "b", "rejected": "a"}]
    read = Read(folder, rows, pool, preference={"style": style})
    assert list(read.reasons()) == [0]
    assert read.texts(1)[0].rstrip(tiny.EOS).strip("\n").endswith(("b", "b<|im_end|>"))
