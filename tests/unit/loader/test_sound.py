"""Rows with sound: tokens from the length of what is there, clips for an encoder's window, and features."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from dataloader_svc.config.schema import Config
from dataloader_svc.errors import Overloaded
from dataloader_svc.loader.decode import PieceRange, check_size, decode, take
from dataloader_svc.loader.read import probe_columns, read_block
from dataloader_svc.loader.rules import sample_rule
from dataloader_svc.loader.undecodable import undecodable
from dataloader_svc.media.mel import MelRule, log_mel
from dataloader_svc.sample import BlockId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.testing import tokenizer as tiny
from dataloader_svc.transforms.tokenizers import Tokenizer
from tests.sounds import encoded, tone
from tests.unit.media.test_audio import lying_mp4

RATE = 16_000
MEL = MelRule(bins=80)


def wave(seconds, hertz=440.0):
    return tone(round(seconds * RATE), RATE, hertz)


def wav(seconds, hertz=440.0):
    return encoded(wave(seconds, hertz)[None], RATE, codec="pcm_f32le")


def reading(folder, rows, **source):
    """The one block of a JSONL file, with the reader, rule and probe of it."""
    tiny.make_tokenizer(folder / "tokenizer")
    for name, data in (item for row in rows for item in row.pop("files", {}).items()):
        (folder / name).write_bytes(data)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Config.model_validate(
        {
            "job": "sound",
            "tokenizer": "tokenizer",
            "sequence_length": 256,
            "global_batch": {"sequences": 1},
            "mel": {"bins": 80},
            "media_tokens": {"audio": tiny.AUDIO},
            "sources": {"s": {"format": "jsonl", "path": "rows.jsonl", "shuffle": False, **source}},
            "mixture": {"schedule": [{"step": 0, "s": 1}]},
        }
    )
    tokenizer = Tokenizer.load(folder / "tokenizer")
    rule = sample_rule(config, "s", folder, tokenizer)
    reader = SourceReader("s", config.sources["s"], folder, None, 0)
    with ThreadPoolExecutor(1) as pool:
        held = read_block(reader, BlockId("s", 0, 0), rule, pool)
    return SimpleNamespace(
        held=held, reader=reader, rule=rule, tokenizer=tokenizer, probe=probe_columns(held)
    )


def fetched(found, *pieces):
    taken = [take(found.held, PieceRange(*piece), found.reader, found.rule) for piece in pieces]
    with ThreadPoolExecutor(1) as pool:
        return decode(taken, 14, pool)


def shown(found, row):
    """A document's text, with runs of placeholders as [n]."""
    low, high = found.held.id_offsets[row : row + 2]
    text = found.tokenizer.decode(found.held.ids[low:high].tolist())
    for count in range(300, 0, -1):
        text = text.replace(tiny.AUDIO * count, f"[{count}]")
    return text


def test_tokens_are_known_from_the_packets(tmp_path):
    rows = [
        {"text": "what is said", "sound": "a.wav", "files": {"a.wav": wav(1.0)}},
        {"text": "first <audio> then <audio> end", "sound": ["b.wav", "c.wav"]},
        {"text": "a long one", "sound": "d.wav"},
    ]
    rows[1]["files"] = {"b.wav": wav(0.5), "c.wav": wav(0.05)}
    rows[2]["files"] = {"d.wav": wav(2.41)}
    found = reading(tmp_path, rows, text="text", audio={"field": "sound", "max_seconds": 5})
    assert [shown(found, row) for row in range(3)] == [
        f"[25]what is said{tiny.EOS}",
        f"first [13] then [2] end{tiny.EOS}",
        f"[61]a long one{tiny.EOS}",
    ]
    probe = found.probe
    assert probe.frames.tolist() == [100, 60, 244]
    assert probe.patches.tolist() == [0, 0, 0]
    assert probe.media_frames.tolist() == [100, 52, 8, 244]
    assert probe.media_tokens.tolist() == [25, 13, 2, 61]
    assert probe.media_patches.tolist() == [0] * 4
    assert probe.bad == ()


def test_features_are_those_of_the_samples(tmp_path):
    rows = [{"text": "<audio> and <audio>", "sound": ["a.wav", "b.wav"]}]
    rows[0]["files"] = {"a.wav": wav(0.4), "b.wav": wav(0.09, hertz=1000)}
    found = reading(tmp_path, rows, text="text", audio={"field": "sound", "max_seconds": 5})
    tokens = int(found.probe.tokens[0])
    arrays = fetched(found, (0, 0, tokens)).arrays
    assert arrays["ok"].tolist() == [1]
    assert arrays["media_kind"].tolist() == [2, 2]
    assert arrays["grid_thw"].tolist() == [[40, 0, 0], [12, 0, 0]]
    assert arrays["pixels"].shape == (0, 588)
    assert arrays["frame_times"].shape == (0,)
    second = np.pad(wave(0.09, 1000), (0, 12 * 160 - 1440))
    expected = np.concatenate([log_mel(wave(0.4), MEL), log_mel(second, MEL)])
    np.testing.assert_array_equal(arrays["features"], expected)


def test_a_long_clip_is_several(tmp_path):
    rows = [{"text": "before <audio> behind", "sound": "a.wav", "files": {"a.wav": wav(2.5)}}]
    found = reading(tmp_path, rows, text="text", audio={"field": "sound", "max_seconds": 1})
    assert shown(found, 0) == f"before [63] behind{tiny.EOS}"
    probe = found.probe
    assert probe.media_frames.tolist() == [100, 100, 52]
    assert probe.media_tokens.tolist() == [25, 25, 13]
    start = int(probe.media_start[0])
    assert probe.media_start.tolist() == [start, start + 25, start + 50]
    tokens = int(probe.tokens[0])
    assert found.held.num_bytes < 2 * len(wav(2.5)), "the file counts once"
    samples = np.pad(wave(2.5), (0, 252 * 160 - 40_000))
    alone = [log_mel(samples[at : at + 16_000], MEL) for at in (0, 16_000, 32_000)]
    whole = fetched(found, (0, 0, tokens)).arrays
    np.testing.assert_array_equal(whole["features"], np.concatenate(alone))
    # Cut where a clip ends: each piece has the clips whose placeholders it has.
    first = start + 25
    arrays = fetched(found, (0, first, tokens - first), (0, 0, first)).arrays
    assert arrays["media_offsets"].tolist() == [0, 2, 3]
    assert arrays["media_start"].tolist() == [0, 25, start]
    np.testing.assert_array_equal(arrays["features"], np.concatenate([*alone[1:], alone[0]]))


@pytest.mark.parametrize(
    ("longer", "tokens", "frames"), [("split", 63, [100, 100, 52]), ("truncate", 25, [100]), ("drop", 0, [])]
)
def test_longer_than_the_window(tmp_path, longer, tokens, frames):
    rows = [{"text": "t", "sound": "a.wav", "files": {"a.wav": wav(2.5)}}]
    audio = {"field": "sound", "max_seconds": 1, "longer": longer}
    found = reading(tmp_path, rows, text="text", audio=audio)
    assert found.probe.media_frames.tolist() == frames
    assert found.probe.media_tokens.sum() == tokens
    details = [(row.reason, row.detail) for row in found.probe.bad]
    assert details == (
        [("too_long", "2.52 s of sound, and audio.longer is drop")] if longer == "drop" else []
    )
    if longer == "truncate":
        arrays = fetched(found, (0, 0, int(found.probe.tokens[0]))).arrays
        np.testing.assert_array_equal(arrays["features"], log_mel(wave(1.0), MEL))


def test_what_is_bad_at_its_probe_is_passed_over(tmp_path):
    rows = [
        {"text": "no sound", "sound": "a.wav", "files": {"a.wav": b"a text, no sound" * 20}},
        {"text": "gone", "sound": "nowhere.wav"},
        {"text": "fine", "sound": "c.wav", "files": {"c.wav": wav(0.2)}},
        {"text": "too long a file", "sound": "d.wav", "files": {"d.wav": wav(3)}},
        {"text": "two <audio> of one <audio>", "sound": "c.wav"},
        {"text": "none", "sound": None},
    ]
    found = reading(
        tmp_path, rows, text="text", audio={"field": "sound", "max_source_seconds": 2, "max_seconds": 1}
    )
    assert {row.position: row.reason for row in found.probe.bad} == {
        0: "not_media",
        1: "missing_file",
        3: "too_long",
        4: "marker_mismatch",
        5: "missing_field",
    }
    assert shown(found, 2) == f"[5]fine{tiny.EOS}"


def test_what_is_bad_when_decoded_keeps_its_place(tmp_path):
    rows = [
        {"text": "lies", "sound": "lie.mp4", "files": {"lie.mp4": lying_mp4(3)}},
        {"text": "fine", "sound": "c.wav", "files": {"c.wav": wav(0.2)}},
    ]
    found = reading(tmp_path, rows, text="text", audio={"field": "sound", "max_seconds": 1})
    assert found.probe.bad == ()
    lengths = found.probe.tokens.tolist()
    frame = fetched(found, (0, 0, lengths[0]), (1, 0, lengths[1]))
    assert frame.arrays["ok"].tolist() == [0, 1]
    ((number, shard, row, reason, detail),) = frame.meta["bad"]
    assert (number, row, reason) == (0, 0, "truncated")
    assert shard.endswith("rows.jsonl")
    assert "the sound ends after" in detail
    lie = int(found.probe.frames[0])
    assert not frame.arrays["features"][:lie].any()
    np.testing.assert_array_equal(frame.arrays["features"][lie:], log_mel(wave(0.2), MEL))
    with ThreadPoolExecutor(1) as pool:
        bad = list(undecodable(found.held, found.reader, found.rule, pool))
    assert [(one.position, one.reason) for one in bad] == [(0, "truncated")]


def test_sound_in_messages(tmp_path):
    data = base64.b64encode(wav(0.2)).decode()
    parts = [
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "text", "text": "What is <audio>?"},
    ]
    answer = {"role": "assistant", "content": "A tone."}
    rows = [
        {"messages": [{"role": "user", "content": parts}, answer]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "audio", "audio_url": "b.wav"}, parts[1]]},
                answer,
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "audio"}, parts[1]]}, answer], "sound": "b.wav"},
        {"messages": [{"role": "user", "content": [{"type": "audio", "audio": {"data": "?"}}]}, answer]},
    ]
    rows[1]["files"] = {"b.wav": wav(0.4)}
    found = reading(tmp_path, rows, messages="messages", audio={"field": "sound", "max_seconds": 1})
    assert [shown(found, row).partition(tiny.STOP)[0] for row in range(3)] == [
        f"{tiny.START}user\n[5]What is <audio>?",
        f"{tiny.START}user\n[10]What is <audio>?",
        f"{tiny.START}user\n[10]What is <audio>?",
    ]
    assert {row.position: row.reason for row in found.probe.bad} == {3: "bad_record"}


def test_an_answer_that_is_too_large_is_refused(tmp_path):
    rows = [{"text": "t", "sound": "a.wav", "files": {"a.wav": wav(1)}}]
    found = reading(tmp_path, rows, text="text", audio={"field": "sound", "max_seconds": 1})
    piece = take(found.held, PieceRange(0, 0, int(found.probe.tokens[0])), found.reader, found.rule)
    size = 5 * len(piece.ids) + 100 * 80 * 4
    check_size([piece], size)
    with pytest.raises(Overloaded, match="32000 of sound"):
        check_size([piece], size - 1)
