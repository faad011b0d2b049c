"""A batch read back into text, control tokens and pictures."""

from __future__ import annotations

import numpy as np
import pytest

from dataloader_svc.cli.contents import Clip, Medium, PieceKey, Run, read_contents
from dataloader_svc.media.mel import MelRule
from dataloader_svc.testing.tokenizer import EOS
from dataloader_svc.transforms.tokenizers import Tokenizer
from tests.unit.cli.batches import MEL, RULE, batch_of, document, picture, sound


def test_pictures_stand_where_their_placeholders_are(tokenizer: Tokenizer) -> None:
    eos = tokenizer.control[EOS]
    small, large, clip = picture(8, 16), picture(24, 40, seed=1), picture(8, 24, seed=2, frames=3)
    one = document(tokenizer, "captions", 3, "before ", small, "between", large, "after", eos)
    two = document(tokenizer, "clips", 0, clip, "a clip", eos)
    three = document(tokenizer, "captions", 4, picture(16, 8, seed=3), "last", eos)
    found = read_contents(
        [batch_of(one, two), batch_of(three)], {one.key, two.key, three.key}, tokenizer, RULE, MelRule()
    )

    assert found[one.key].text() == (
        f"before [image 16x8: 2 tokens]between[image 40x24: 15 tokens]after{EOS}"
    )
    assert found[two.key].text() == f"[video 3 x 24x8: 9 tokens]a clip{EOS}"
    assert found[three.key].text() == f"[image 8x16: 2 tokens]last{EOS}"
    for key, frames in ((one.key, [small, large]), (two.key, [clip])):
        shown = [medium.frames() for medium in found[key].media]
        assert [frame.tolist() for frame in shown] == [frame.tolist() for frame in frames]


def test_only_what_is_wanted_is_read(tokenizer: Tokenizer) -> None:
    one, two = document(tokenizer, "a", 0, "one"), document(tokenizer, "a", 1, "two")
    assert set(read_contents([batch_of(one, two)], {two.key}, tokenizer, RULE, MelRule())) == {two.key}


def test_parts_of_one_document_are_told_apart(tokenizer: Tokenizer) -> None:
    first = document(tokenizer, "a", 7, "the first part")
    second = document(tokenizer, "a", 7, "the second part", start=first.key.length)
    found = read_contents([batch_of(second, first)], {first.key, second.key}, tokenizer, RULE, MelRule())
    assert found[first.key].text() == "the first part"
    assert found[second.key].text() == "the second part"
    assert second.key == PieceKey("a", 0, 7, first.key.length, len(second.ids))


def test_masked_turns_and_control_tokens_are_runs_of_their_own(tokenizer: Tokenizer) -> None:
    eos = tokenizer.control[EOS]
    made = document(tokenizer, "chat", 0, ("What is it?", False), (eos, False), "A fox.", eos)
    content = read_contents([batch_of(made)], {made.key}, tokenizer, RULE, MelRule())[made.key]
    runs = [(p.text, p.control, p.target) for p in content.parts if isinstance(p, Run)]
    assert runs == [
        ("What is it?", False, False),
        (EOS, True, False),
        ("A fox.", False, True),
        (EOS, True, True),
    ]
    assert content.targets == len(tokenizer.encode_batch(["A fox."])[0]) + 1
    assert sum(part.tokens for part in content.parts) == made.key.length


def test_the_first_token_of_a_piece_is_not_predicted(tokenizer: Tokenizer) -> None:
    made = document(tokenizer, "a", 0, "hello there")
    content = read_contents([batch_of(made)], {made.key}, tokenizer, RULE, MelRule())[made.key]
    first, rest = content.parts
    assert isinstance(first, Run)
    assert isinstance(rest, Run)
    assert (first.tokens, first.target, rest.target) == (1, False, True)
    assert content.targets == made.key.length - 1


@pytest.mark.parametrize("text", ["🙂🙂 naïve 猫", "猫が好き", "x🙂"])
def test_a_character_of_several_tokens_is_not_torn(tokenizer: Tokenizer, text: str) -> None:
    """The tiny vocabulary spells these byte by byte, and the mask begins inside the first character."""
    made = document(tokenizer, "a", 0, text)
    assert made.key.length > len(text)
    content = read_contents([batch_of(made)], {made.key}, tokenizer, RULE, MelRule())[made.key]
    assert content.text() == text
    assert all("\ufffd" not in part.text for part in content.parts if isinstance(part, Run))


def test_a_document_of_a_picture_alone(tokenizer: Tokenizer) -> None:
    made = document(tokenizer, "a", 0, picture(8, 8))
    (part,) = read_contents([batch_of(made)], {made.key}, tokenizer, RULE, MelRule())[made.key].parts
    assert isinstance(part, Medium)
    assert (part.kind, part.tokens, part.width, part.height) == ("image", 1, 8, 8)
    assert part.frames().dtype == np.uint8


def test_sound_stands_where_its_placeholders_are(tokenizer: Tokenizer) -> None:
    eos = tokenizer.control[EOS]
    short, long = sound(8), sound(40, seed=1)
    one = document(tokenizer, "speech", 3, "before ", long, "between", picture(8, 16), short, eos)
    two = document(tokenizer, "speech", 4, sound(4, seed=2), "last", eos)
    found = read_contents([batch_of(one, two)], {one.key, two.key}, tokenizer, RULE, MEL)
    assert found[one.key].text() == (
        f"before [audio 0.40 s: 10 tokens]between[image 16x8: 2 tokens][audio 0.08 s: 2 tokens]{EOS}"
    )
    assert found[two.key].text() == f"[audio 0.04 s: 1 tokens]last{EOS}"
    clips = [medium for medium in found[one.key].media if isinstance(medium, Clip)]
    for clip, features in zip(clips, (long, short), strict=True):
        np.testing.assert_array_equal(clip.features, features)


def test_a_clip_is_drawn_with_low_frequencies_below() -> None:
    features = np.zeros((4, 8), np.float32)
    features[2, 0] = 1.0  # the lowest filter, late
    (drawn,) = Clip(1, features, MEL).frames()
    assert drawn.shape == (8, 4, 3)
    assert np.argwhere(drawn[:, :, 0]).tolist() == [[7, 2]]
    assert drawn[7, 2].tolist() == [255, 255, 255]
    silence = Clip(1, np.zeros((4, 8), np.float32), MEL)
    assert not silence.frames().any(), "dark, not a division by 0"
