import pytest

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sources.chat_shapes import messages_value
from dataloader_svc.sources.fields import fields_of, row_values
from dataloader_svc.sources.values import media_value, text_value

NAN = float("nan")


def reason_of(call, *args, **kwargs):
    with pytest.raises(BadSample) as caught:
        call(*args, **kwargs)
    return caught.value.reason, caught.value.detail


def test_mapping_of_a_source():
    source = Source(format="jsonl", path="x", text="t", image="i", video={"field": "v"})
    assert dict(fields_of(source).names) == {"text": ("t",), "image": ("i",), "video": ("v",)}
    source = Source(format="jsonl", path="x", messages="m", image=["jpg", "png"])
    assert dict(fields_of(source).names) == {"messages": ("m",), "image": ("jpg", "png")}
    assert list(fields_of(source)) == ["messages", "image"]


@pytest.mark.parametrize("text", ["", " ", "None", "nan", "a\n"])
def test_text_is_itself(text):
    assert text_value(text, "t") == text


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (None, Reason.MISSING_FIELD, "'t' is null"),
        (7, Reason.WRONG_TYPE, "a number"),
        (NAN, Reason.WRONG_TYPE, "a number"),
        (True, Reason.WRONG_TYPE, "a boolean"),
        (["a"], Reason.WRONG_TYPE, "a list"),
        ({"a": 1}, Reason.WRONG_TYPE, "an object"),
        (b"a", Reason.WRONG_TYPE, "bytes"),
    ],
)
def test_what_is_no_text(value, reason, words):
    found, detail = reason_of(text_value, value, "t")
    assert found is reason
    assert words in detail


@pytest.mark.parametrize(
    ("value", "media"),
    [
        ("x.png", ["x.png"]),
        (["x.png"], ["x.png"]),
        ([], []),
        (None, []),
        (b"\x89", [b"\x89"]),
        ({"bytes": b"\x89", "path": "x.png"}, [b"\x89"]),
        ({"bytes": None, "path": "x.png"}, ["x.png"]),
        ({"bytes": b"", "path": "x.png"}, ["x.png"]),
        ({"path": "x.png"}, ["x.png"]),
        ([{"bytes": b"1"}, "b.png", b"3"], [b"1", "b.png", b"3"]),
    ],
)
def test_media(value, media):
    assert media_value(value, "i") == media


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", Reason.MISSING_FIELD),
        (b"", Reason.MISSING_FIELD),
        ({"bytes": None, "path": None}, Reason.MISSING_FIELD),
        (["x.png", None], Reason.MISSING_FIELD),
        (7, Reason.WRONG_TYPE),
        (NAN, Reason.WRONG_TYPE),
        ({"url": "x.png"}, Reason.WRONG_TYPE),
        ([["x.png"]], Reason.WRONG_TYPE),
    ],
)
def test_what_is_no_medium(value, reason):
    assert reason_of(media_value, value, "i")[0] is reason


def test_a_null_picture_is_not_a_null_list():
    assert reason_of(media_value, None, "i", null_is_none=False)[0] is Reason.MISSING_FIELD


def test_messages():
    turns = [{"role": "user", "content": ""}, {"role": "assistant", "content": "b", "name": None, "x": 1}]
    assert messages_value(turns, "m") == [turns[0], {"role": "assistant", "content": "b", "x": 1}]


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (None, Reason.MISSING_FIELD, "null"),
        ([], Reason.BAD_MESSAGES, "no messages"),
        ("hi", Reason.WRONG_TYPE, "a string"),
        (["hi"], Reason.WRONG_TYPE, "'m[0]'"),
        (
            [{"role": "user", "content": None}],
            Reason.BAD_MESSAGES,
            "m[0].content must be a string or a list of parts, is null",
        ),
        ([{"content": "a"}], Reason.BAD_MESSAGES, "m[0].role must be a string, is absent"),
        ([{"from": "humna", "value": "a"}], Reason.BAD_MESSAGES, "did you mean 'human'"),
        ([{"from": 3, "value": "a"}], Reason.BAD_MESSAGES, "m[0].from is 3"),
        ([{"from": "human", "value": None}], Reason.BAD_MESSAGES, "m[0].value must be a string, is null"),
        ([{"from": "human"}], Reason.BAD_MESSAGES, "m[0].value must be a string, is null"),
        ([{"roles": "user", "content": "a"}], Reason.BAD_MESSAGES, "did you mean 'roles'"),
    ],
)
def test_what_are_no_messages(value, reason, words):
    found, detail = reason_of(messages_value, value, "m")
    assert found is reason
    assert words in detail


def test_the_first_field_that_a_row_has():
    fields = fields_of(Source(format="jsonl", path="x", text="t", image=["jpg", "png"]))
    assert row_values(fields, {"t": "a", "png": "p"}) == {"text": "a", "image": ["p"]}
    assert row_values(fields, {"t": "a", "png": "p", "jpg": "j"})["image"] == ["j"]
    assert row_values(fields, {"t": "a", "png": "p", "jpg": None})["image"] == ["p"]
    assert row_values(fields, {"t": "a", "png": None})["image"] == []


def test_an_absent_field_is_not_no_picture():
    """A misspelt name must not turn a captioned source into text, silently."""
    fields = fields_of(Source(format="jsonl", path="x", text="t", image="imge"))
    reason, detail = reason_of(row_values, fields, {"t": "a", "image": "p"})
    assert reason is Reason.MISSING_FIELD
    assert "did you mean 'image'" in detail


def test_a_row_with_thousands_of_keys_gives_a_short_detail():
    fields = fields_of(Source(format="jsonl", path="x", text="t"))
    _, detail = reason_of(row_values, fields, {"k" * 1000 + str(i): 0 for i in range(5000)})
    assert len(detail) < 2500
    assert "5000 in all" in detail
