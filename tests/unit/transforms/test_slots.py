"""Whose media go where: slots, the row's own media, and markers typed beside slots."""

from pathlib import Path

import numpy as np
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.base import MediaSizes, RowColumns
from dataloader_svc.transforms.chat import ChatTemplate
from dataloader_svc.transforms.document import DocumentRule, assemble
from dataloader_svc.transforms.slots import row_media, without_dead

ANSWER = {"role": "assistant", "content": "it"}
LISTS = (
    "{% for m in messages %}<|im_start|>{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|image_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>{% endfor %}"
)
BLIND = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
)


def image(medium=None):
    return {"type": "image"} if medium is None else {"type": "image", "medium": medium}


def text(words):
    return {"type": "text", "text": words}


def chat_of(*parts):
    return [{"role": "user", "content": list(parts)}, ANSWER]


def media_of(kinds=(0, 1), **columns):
    return row_media({name: [value] for name, value in columns.items()}, 0, kinds)


def test_without_slots_kind_after_kind():
    assert media_of(video=["v"], image=["a", b"b"], text="x") == [(0, "a"), (0, b"b"), (1, "v")]
    assert media_of(messages=[{"role": "user", "content": "<image>"}], image=["a"]) == [(0, "a")]
    assert media_of(messages=[ANSWER]) == []


def test_slots_hold_their_medium_or_take_the_next_of_the_row():
    chat = [*chat_of(image("a"), text("x"), image()), *chat_of({"type": "video", "medium": "v"}, image())]
    assert media_of(messages=chat, image=["b", "c"]) == [(0, "a"), (0, "b"), (1, "v"), (0, "c")]


@pytest.mark.parametrize("own", [[], ["a"], ["a", "b", "c"]])
def test_as_many_media_as_slots(own):
    with pytest.raises(BadSample) as caught:
        media_of(messages=chat_of(image(), image()), image=own)
    assert caught.value.reason is Reason.MARKER_MISMATCH
    assert f"2 parts of type image that hold none, and {len(own)} images" in caught.value.detail


def test_pictures_of_the_row_beside_slots_that_hold_their_own():
    with pytest.raises(BadSample) as caught:
        media_of(messages=chat_of(image("a")), image=["b"])
    assert caught.value.reason is Reason.MARKER_MISMATCH


def test_a_kind_that_the_job_has_no_token_for():
    with pytest.raises(BadSample, match=r"media_tokens\.image is not set"):
        media_of(kinds=(), messages=chat_of(image("a")))


def test_an_empty_slot_of_a_document_is_a_dead_picture():
    [(kind, problem)] = media_of(interleaved=[text("a"), image()])
    assert (kind, problem.reason) == (0, Reason.MISSING_FIELD)
    assert media_of(interleaved=[text("a"), image()], image=["x"]) == [(0, "x")]


def test_dead_slots_leave_their_document():
    documents = [[image("a"), text("x"), image("b"), image("c")], [image("d")], [text("y")]]
    left = without_dead(documents, {0: {0, 2}, 1: {0}})
    assert left == [[text("x"), image("b")], [], [text("y")]]
    assert len(documents[0]) == 4, "the rows given are not changed"


class TestPlaces:
    """Documents of chats and interleaved texts with pictures of 3 and 2 tokens."""

    SIZES = MediaSizes(np.array([0, 2]), np.zeros(2, np.uint8), np.array([3, 2], np.int32))

    def rule(self, tokenizer, chat=None):
        control = tokenizer.control
        return DocumentRule(
            eos=control[tiny.EOS],
            media_tokens=(control[tiny.IMAGE], -1),
            markers=(("<image>", 0),),
            chat=chat,
            separator=" ",
        )

    def made(self, tokenizer, chat, messages):
        rows = RowColumns(1, self.SIZES, messages=[messages])
        return assemble(tokenizer, self.rule(tokenizer, chat), rows)

    @pytest.fixture(params=["text", "lists"])
    def chat(self, request, tokenizer, tmp_path: Path):
        if request.param == "text":
            return ChatTemplate.load(None, tokenizer)
        (tmp_path / "chat.jinja").write_text(LISTS)
        return ChatTemplate.load(tmp_path / "chat.jinja", tokenizer)

    def test_a_marker_typed_beside_slots_is_text(self, tokenizer, chat):
        messages = chat_of(image("a"), text("is <image> a tag?"), image("b"))
        messages = [{"role": "system", "content": "say <image>"}, *messages]
        documents = self.made(tokenizer, chat, messages)
        assert not documents.bad
        shown = tokenizer.decode(documents.ids.tolist())
        assert tiny.IMAGE * 3 + "is <image> a tag?" + tiny.IMAGE * 2 in shown
        assert "say <image>" in shown
        assert documents.media_index.tolist() == [0, 1]

    def test_a_marker_counts_where_no_part_is_a_slot(self, tokenizer, chat):
        messages = [{"role": "user", "content": [text("<image>what?")]}, *chat_of(text("and <image>?"))]
        documents = self.made(tokenizer, chat, messages)
        assert not documents.bad
        shown = tokenizer.decode(documents.ids.tolist())
        assert tiny.IMAGE * 3 + "what?" in shown
        assert "and " + tiny.IMAGE * 2 + "?" in shown

    def test_a_template_that_leaves_slots_out(self, tokenizer, tmp_path: Path):
        (tmp_path / "blind.jinja").write_text(BLIND)
        blind = ChatTemplate.load(tmp_path / "blind.jinja", tokenizer)
        documents = self.made(tokenizer, blind, chat_of(image("a"), text("x"), image("b")))
        assert documents.bad[0].reason is Reason.MARKER_MISMATCH
        assert "0 image places that the chat template gives for 2 images" in documents.bad[0].detail

    def test_an_interleaved_document(self, tokenizer):
        parts = [text("a <image> b"), text("c"), image("x"), text("d"), image("y")]
        rows = RowColumns(1, self.SIZES, interleaved=[parts])
        documents = assemble(tokenizer, self.rule(tokenizer), rows)
        shown = tokenizer.decode(documents.ids.tolist())
        assert shown == f"a <image> b c{tiny.IMAGE * 3}d{tiny.IMAGE * 2}{tiny.EOS}"
        is_picture = documents.ids == tokenizer.control[tiny.IMAGE]
        assert (documents.targets == ~is_picture).all()
        assert documents.media_start.tolist() == np.flatnonzero(is_picture)[[0, 3]].tolist()

    @pytest.mark.parametrize("words", [(), ("",), (" ", "\n")])
    def test_a_document_of_pictures_alone(self, tokenizer, words):
        parts = [*map(text, words), image("x"), image("y")]
        documents = assemble(tokenizer, self.rule(tokenizer), RowColumns(1, self.SIZES, interleaved=[parts]))
        assert documents.bad[0].reason is Reason.EMPTY_TEXT
