"""The three shapes of a chat become one; what is wrong in a message is named."""

import base64

import pyarrow as pa
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sources.chat_shapes import messages_value

ANSWER = {"role": "assistant", "content": "it"}
PNG = b"\x89PNG some bytes\xff"
DATA_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def content_of(*parts):
    return messages_value([{"role": "user", "content": list(parts)}, ANSWER], "m")[0]["content"]


def test_plain_openai_and_sharegpt_say_the_same():
    plain = [{"role": "user", "content": "<image>\nhi"}, ANSWER]
    speakers = [{"from": "human", "value": "<image>\nhi"}, {"from": "gpt", "value": "it"}]
    assert messages_value(plain, "m") == messages_value(speakers, "m") == plain


def test_every_speaker_has_a_role():
    spoken = [("system", "system"), ("user", "user"), ("GPT", "assistant"), ("observation", "tool")]
    value = [{"from": speaker, "value": "x", "weight": 1} for speaker, _ in spoken]
    assert messages_value(value, "m") == [{"role": role, "content": "x", "weight": 1} for _, role in spoken]


def test_arrow_gives_all_keys_to_all_messages():
    value = [{"role": None, "content": None, "from": "human", "value": "a"}, {**ANSWER, "from": None}]
    assert messages_value(value, "m") == [{"role": "user", "content": "a"}, ANSWER]


@pytest.mark.parametrize(
    ("part", "medium"),
    [
        ({"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}, "a.png"),
        ({"type": "image_url", "image_url": "https://x/a.png"}, "https://x/a.png"),
        ({"type": "image_url", "image_url": {"url": DATA_URL}}, PNG),
        ({"type": "image", "image": DATA_URL}, PNG),
        ({"type": "image", "image": PNG}, PNG),
        ({"type": "image", "image": {"bytes": PNG, "path": "a.png"}}, PNG),
        ({"type": "image", "image": {"bytes": None, "path": "a.png"}}, "a.png"),
        ({"type": "image", "path": "a.png"}, "a.png"),
        ({"type": "image", "url": "a.png", "text": None}, "a.png"),
        ({"type": "image_url", "image_url": {"url": "data:text/plain,%00a"}}, b"\0a"),
    ],
)
def test_where_a_picture_may_be(part, medium):
    assert content_of(part) == [{"type": "image", "medium": medium}]


def test_slots_for_the_pictures_of_the_row():
    parts = [{"type": "image", "text": None}, {"type": "video"}, {"type": "text", "text": "", "image": None}]
    assert content_of(*parts) == [{"type": "image"}, {"type": "video"}, {"type": "text", "text": ""}]


def test_the_normal_form_stays_as_it_is():
    """A person's function may hand it back."""
    once = messages_value([{"role": "user", "content": [{"type": "image", "image": PNG}]}, ANSWER], "m")
    assert messages_value(once, "m") == once


@pytest.mark.parametrize(
    ("part", "reason", "words"),
    [
        ("hi", Reason.WRONG_TYPE, "m[0].content[0]"),
        ({}, Reason.WRONG_TYPE, "is absent"),
        ({"type": "imgae"}, Reason.WRONG_TYPE, "did you mean 'image'"),
        ({"type": 5}, Reason.WRONG_TYPE, "is 5"),
        ({"type": "text"}, Reason.WRONG_TYPE, "m[0].content[0].text' must be a string, is null"),
        ({"type": "text", "text": ["a"]}, Reason.WRONG_TYPE, "is a list"),
        ({"type": "image_url", "image_url": {"uri": "a"}}, Reason.WRONG_TYPE, "has uri"),
        ({"type": "image_url", "image_url": {"url": None}}, Reason.MISSING_FIELD, "has url"),
        ({"type": "image_url", "image_url": {}}, Reason.WRONG_TYPE, "has nothing"),
        ({"type": "image", "image": 7}, Reason.WRONG_TYPE, "is a number"),
        ({"type": "image", "image": ["a.png"]}, Reason.WRONG_TYPE, "is a list"),
        ({"type": "image", "image": ""}, Reason.MISSING_FIELD, "is empty"),
        ({"type": "image", "image": "data:image/png;base64,A"}, Reason.BAD_RECORD, "not base64"),
        ({"type": "image", "image": "data:image/png;base64,ä"}, Reason.BAD_RECORD, "not base64"),
        ({"type": "image", "image": "data:image/png;base64,"}, Reason.MISSING_FIELD, "is empty"),
        ({"type": "image", "image": "data:image/png"}, Reason.BAD_RECORD, "without a comma"),
    ],
)
def test_what_is_no_part(part, reason, words):
    with pytest.raises(BadSample) as caught:
        content_of(part)
    assert caught.value.reason is reason
    assert words in caught.value.detail


def test_a_real_arrow_column():
    """What pyarrow makes of a struct with a list inside is what the rules see."""
    user = {"role": "user", "content": [{"type": "image", "image": PNG}, {"type": "text", "text": "a"}]}
    [[read]] = [pa.array([[user]]).to_pylist()]
    assert messages_value(read, "m")[0]["content"] == [
        {"type": "image", "medium": PNG},
        {"type": "text", "text": "a"},
    ]
