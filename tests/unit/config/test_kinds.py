"""Kinds of documents in the YAML: one a source, what goes with which, and what a resume is held against."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dataloader_svc.config.digest import compare, read_digest
from dataloader_svc.config.schema import Config, Interleaved, Source


def source(**fields: Any) -> Source:
    return Source.model_validate({"format": "jsonl", "path": "a.jsonl", **fields})


def config(media_tokens: dict[str, Any] | None = None, **fields: Any) -> Config:
    return Config.model_validate(
        {
            "job": "j",
            "tokenizer": "t.json",
            "sequence_length": 128,
            "global_batch": {"sequences": 4},
            "media_tokens": media_tokens or {},
            "sources": {"a": {"format": "jsonl", "path": "a.jsonl", **fields}},
            "mixture": {"schedule": [{"step": 0, "a": 1}]},
        }
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "exactly one of `text`, `messages`, `interleaved`, `preference` and `input_ids`; found none"),
        ({"text": "t", "input_ids": "x"}, "found text and input_ids"),
        ({"text": "t", "loss_mask": "m"}, "`loss_mask` belongs to `input_ids`; the source maps `text`"),
        ({"input_ids": "x", "image": "i"}, "`input_ids` come without media"),
        ({"input_ids": "x", "video": {"field": "v"}}, "`input_ids` come without media"),
        ({"interleaved": {"style": "obelics"}, "image": "i"}, "map no `image` beside it"),
        ({"interleaved": {"style": "parts", "texts": "t"}}, "style parts has no texts"),
        ({"interleaved": {"style": "mmc4", "parts": "p"}}, "style mmc4 has no parts"),
        ({"interleaved": {"style": "flamingo"}}, "'obelics', 'mmc4' or 'parts'"),
        ({"text": "t", "video": {"fps": 2}}, "`video` needs `field`"),
        ({"text": "t", "audio": {"max_seconds": 20}}, "`audio` needs `field`"),
        ({"text": "t", "audio": {"field": []}}, "`audio` needs `field`"),
        ({"text": "t", "audio": {"field": "a", "longer": "cut"}}, "'split', 'truncate' or 'drop'"),
        ({"input_ids": "x", "audio": {"field": "a"}}, "`input_ids` come without media"),
        ({"text": "t", "preference": {"style": "text"}}, "found text and preference"),
        ({"preference": {"style": "text"}, "too_long": "split"}, "would tear preference pairs: use truncate"),
        ({"preference": {"style": "text"}, "video": {"fps": 2}}, "`video` needs `field`"),
        ({"preference": {"style": "messages", "prompt_end": ":"}}, "`prompt_end` is for style text"),
        ({"preference": {"style": "text", "prompt": "p", "prompt_end": ":"}}, "without `prompt`"),
        ({"preference": {"style": "chat"}}, "'text' or 'messages'"),
        ({"input_ids": "x", "id_type": "float32"}, "uint16"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        source(**fields)
    assert words in str(caught.value)


def test_what_does() -> None:
    assert source(messages="m", image="i", video={"fps": 2}).video is not None
    assert source(interleaved={"style": "parts"}, image="i").image == "i"
    assert source(input_ids="x", loss_mask="m", id_type="uint16", append_eos=False).text is None


def test_pairs_are_truncated_unless_the_user_says_otherwise() -> None:
    assert source(preference={"style": "text"}).too_long == "truncate"
    assert source(preference={"style": "text"}, too_long="drop").too_long == "drop"
    assert source(text="t").too_long == "split"
    assert source(preference={"style": "messages"}, image="i", video={"fps": 2}).is_chat
    assert not source(preference={"style": "text"}, image="i").is_chat


def test_the_names_and_separators_of_the_styles() -> None:
    styles = [Interleaved(style=style) for style in ("obelics", "mmc4", "parts")]
    assert [style.names for style in styles] == [
        {"texts": "texts", "images": "images"},
        {"texts": "text_list", "images": "image_info"},
        {"interleaved": "parts"},
    ]
    assert [style.between for style in styles] == ["\n\n", " ", ""]
    assert Interleaved(style="mmc4", separator="", images="i").names["images"] == "i"
    assert Interleaved(style="mmc4", separator="").between == ""


def test_interleaved_documents_need_a_token_for_pictures_and_chats_do_not() -> None:
    with pytest.raises(ValidationError, match=r"media_tokens\.image: source 'a' has it"):
        config(interleaved={"style": "obelics"})
    config(messages="m")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"append_eos": False}, "sources.a.input_ids"),
        ({"loss_mask": "m"}, "sources.a.input_ids"),
        ({"id_type": "uint16"}, "sources.a.input_ids"),
    ],
)
def test_how_ids_are_read_is_held_against_a_resume(
    changes: dict[str, Any], named: str, tmp_path: Any
) -> None:
    before, after = config(input_ids="x"), config(input_ids="x", **changes)
    assert compare(read_digest(before, tmp_path), read_digest(after, tmp_path)) == [named]


@pytest.mark.parametrize("change", [{"on_bad_image": "drop"}, {"separator": "|"}, {"images": "i"}])
def test_how_documents_are_read_is_too(change: dict[str, Any], tmp_path: Any) -> None:
    tokens = {"image": 1}
    before = config(tokens, interleaved={"style": "obelics"})
    after = config(tokens, interleaved={"style": "obelics", **change})
    assert compare(read_digest(before, tmp_path), read_digest(after, tmp_path)) == ["sources.a.interleaved"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"preference": {"style": "messages", "prompt": "p"}}, ["preference"]),
        ({"sequence_length": 64}, ["sequence_length for truncated pairs"]),
        ({"too_long": "drop"}, ["sequence_length for truncated pairs"]),
        ({"too_long": "drop", "sequence_length": 64}, ["sequence_length for truncated pairs"]),
        ({"max_bad_fraction": 0.5}, []),
    ],
)
def test_what_changes_the_content_of_a_pair(change: dict[str, Any], named: list[str], tmp_path: Any) -> None:
    before = config(preference={"style": "messages"})
    length = change.pop("sequence_length", before.sequence_length)
    after = config(**{"preference": {"style": "messages"}, **change})
    after = after.model_copy(update={"sequence_length": length})
    found = compare(read_digest(before, tmp_path), read_digest(after, tmp_path))
    assert found == [f"sources.a.{name}" for name in named]


def test_a_pair_that_is_not_truncated_depends_on_no_length(tmp_path: Any) -> None:
    before = config(preference={"style": "text"}, too_long="drop")
    after = before.model_copy(update={"sequence_length": 64})
    assert compare(read_digest(before, tmp_path), read_digest(after, tmp_path)) == []
