"""Sound in a configuration: what an encoder gets at once fits a token and a sequence."""

from typing import Any

import pytest
from pydantic import ValidationError

from dataloader_svc.config.schema import AudioFields, Config, Mel
from dataloader_svc.media.mel import MelRule


def configured(audio: dict[str, Any], **changes: Any) -> Config:
    return Config.model_validate(
        {
            "job": "j",
            "tokenizer": "t",
            "sequence_length": 750,
            "global_batch": {"sequences": 1},
            "media_tokens": {"audio": "<|audio|>"},
            "sources": {"speech": {"format": "jsonl", "path": "p", "text": "t", "audio": audio}},
            "mixture": {"schedule": [{"step": 0, "speech": 1}]},
            **changes,
        }
    )


def test_defaults_are_those_of_the_rule():
    assert MelRule(**Mel().model_dump()) == MelRule()


@pytest.mark.parametrize(
    ("seconds", "tokens"), [(30, 750), (29.99, 749), (0.04, 1), (0.039, 0), (1.0, 25), (0.3, 7)]
)
def test_tokens_of_seconds(seconds, tokens):
    assert Mel().tokens_of(seconds) == tokens


def test_a_window_fills_a_sequence_at_most():
    configured({"field": "a"})
    with pytest.raises(ValidationError) as caught:
        configured({"field": "a"}, sequence_length=512)
    message = "30 s are 750 tokens, above sequence_length 512: at most 20.48 s"
    assert f"sources.speech.audio.max_seconds: {message}" in str(caught.value)
    configured({"field": "a", "max_seconds": 20.48}, sequence_length=512)
    configured({"field": "a"}, sequence_length=512, mel={"frames_per_token": 8})


def test_a_window_holds_a_token():
    with pytest.raises(ValidationError, match=r"0.03 s are shorter than one token of sound, 0.04 s"):
        configured({"field": "a", "max_seconds": 0.03})
    configured({"field": "a", "max_seconds": 0.03}, mel={"frames_per_token": 2})


def test_fields_may_be_several():
    assert AudioFields(field="wav").names == ("wav",)
    assert AudioFields(field=["wav", "flac"]).names == ("wav", "flac")
    assert AudioFields().names == ()
