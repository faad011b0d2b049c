"""Clips made here: both libraries give the same frames, seeking loses none, and broken files are named."""

import functools
import io
import random
from dataclasses import asdict
from fractions import Fraction

import av
import numpy as np
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import video
from dataloader_svc.media.sampling import VideoSampling
from dataloader_svc.media.video import VideoReader, decode, probe
from dataloader_svc.media.video_index import read_index
from dataloader_svc.media.worker_reader import WorkerReader
from dataloader_svc.media.workers import Limits, WorkerPool

HEIGHT, WIDTH = 48, 64
needs_decord = pytest.mark.skipif(video._decord() is None, reason="decord has no wheel for this machine")


def picture(number):
    """Frame `number`: three coloured gradients that move, in a box of its own grey."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    pixels = np.stack([(x * 3 + number * 5) % 256, y * 5 % 256, (x + y + number) % 256], -1).astype(np.uint8)
    pixels[8:40, 8:40] = level(number)
    return pixels


def level(number):
    return 20 + number * 5


def number_of(frame):
    """Which frame this is, by its box."""
    found = frame[16:32, 16:32].mean()
    return min(range(40), key=lambda number: abs(level(number) - found))


def clip(count=40, container="mp4", codec="libx264", stamps=None, rate=10, sound=False, **options):
    """Encode `count` pictures; `stamps` in ticks of 1/rate s instead of one after the other."""
    stamps = tuple(stamps) if stamps is not None else tuple(range(count))
    return _encoded(stamps, container, codec, rate, sound, tuple(options.items()))


@functools.cache
def _encoded(stamps, container, codec, rate, sound, options):
    options = dict(options)
    file = io.BytesIO()
    pix_fmt = options.pop("pix_fmt", "yuv420p")
    rotation = options.pop("rotation", 0)
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, options={"crf": "10", **options})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pix_fmt
        stream.bit_rate = 8_000_000  # for encoders without crf: sharp enough to read the boxes
        stream.time_base = stream.codec_context.time_base = Fraction(1, rate)
        if rotation:
            stream.set_display_rotation(rotation)
        if sound:
            audio = output.add_stream("aac", rate=16000, layout="mono")
            quiet = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), "fltp", "mono")
            quiet.sample_rate = 16000
            output.mux(audio.encode(quiet))
        for number, stamp in enumerate(stamps):
            frame = av.VideoFrame.from_ndarray(picture(number), "rgb24")
            frame.pts = stamp
            frame.time_base = stream.codec_context.time_base
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if sound:
            output.mux(audio.encode(None))
    return file.getvalue()


GOP = {"g": "10", "bf": "2"}
OPEN_GOP = {"g": "8", "bf": "3", "x264-params": "open-gop=1:scenecut=0:b-adapt=0"}
# closed by its stamps, yet its second key frame is no fresh start
RECOVERY_POINT = {"g": "8", "bf": "3", "x264-params": "open-gop=1:b-pyramid=0:ref=4:b-adapt=2"}
INTRA_REFRESH = {"g": "8", "bf": "0", "x264-params": "intra-refresh=1:scenecut=0"}
HEVC = {"codec": "libx265", "x265-params": "keyint=8:open-gop=0:log-level=none"}
HEVC_OPEN = {"codec": "libx265", "x265-params": "keyint=8:open-gop=1:log-level=none"}


def is_plain(data):
    return read_index(data, None).plain


def reason_of(call, *args, **kwargs):
    with pytest.raises(BadSample) as refused:
        call(*args, **kwargs)
    assert refused.value.detail
    return refused.value.reason


@needs_decord
@pytest.mark.parametrize(
    "options",
    [{}, GOP, HEVC, {"bf": "0"}, {"codec": "mpeg4"}, {"sound": True}, {"colorspace": "bt709"}],
    ids=str,
)
@pytest.mark.parametrize("frames", [1, 3, 8, 40])
def test_both_libraries_give_the_same_frames(options, frames):
    data = clip(**options)
    assert is_plain(data)
    sampling = VideoSampling(frames=frames, max_frames=64)
    for size in ((HEIGHT, WIDTH), (28, 56)):
        by_decord = decode(data, size, sampling, backend="decord")
        by_pyav = decode(data, size, sampling, backend="pyav")
        assert by_decord.shape == (frames, *size, 3)
        np.testing.assert_array_equal(by_decord, by_pyav)


@needs_decord
def test_plain_clips_go_to_decord_and_others_do_not(monkeypatch):
    asked = []
    by_decord = video._by_decord

    def spy(*args):
        asked.append(args)
        return by_decord(*args)

    monkeypatch.setattr(video, "_by_decord", spy)
    decode(clip(), (28, 28), VideoSampling(frames=2))
    assert len(asked) == 1
    odd_times = [0, 1, 2, 9, *range(20, 56)]
    for other in (
        clip(stamps=odd_times),
        clip(container="matroska"),
        # decord would give other frames than were asked for:
        clip(**OPEN_GOP),
        clip(count=12, **RECOVERY_POINT),
        clip(**INTRA_REFRESH),
        clip(**HEVC_OPEN),
        clip(pix_fmt="yuv444p"),
        clip(rotation=90),
        clip(color_range="pc"),
        clip(**{"x264-params": "interlaced=1"}),
    ):
        assert not is_plain(other)
        decode(other, (28, 28), VideoSampling(frames=2))
    assert len(asked) == 1


def test_without_decord_pyav_serves_all(monkeypatch):
    data = clip()
    expected = decode(data, (28, 28), VideoSampling(frames=4))
    monkeypatch.setattr(video, "_decord", lambda: None)
    np.testing.assert_array_equal(decode(data, (28, 28), VideoSampling(frames=4)), expected)


@needs_decord
def test_what_decord_refuses_goes_to_pyav(monkeypatch):
    def refuse(*_args):
        raise BadSample(Reason.DECODE_FAILED, "decord: no")
        yield

    data = clip()
    expected = decode(data, (28, 28), VideoSampling(frames=4))
    monkeypatch.setattr(video, "_by_decord", refuse)
    np.testing.assert_array_equal(decode(data, (28, 28), VideoSampling(frames=4)), expected)
    assert reason_of(decode, data, (28, 28), VideoSampling(), backend="decord") is Reason.DECODE_FAILED


@pytest.mark.parametrize(
    ("container", "options"),
    [
        ("mp4", GOP),
        ("mp4", OPEN_GOP),
        ("mp4", INTRA_REFRESH),
        ("mp4", RECOVERY_POINT),
        ("mp4", HEVC_OPEN),
        ("matroska", GOP),
        ("matroska", OPEN_GOP),
        ("mpegts", GOP),
        ("mpegts", OPEN_GOP),
        ("avi", {"codec": "mpeg4", "g": "10"}),
        ("webm", {"codec": "libvpx-vp9", "g": "10"}),
        ("flv", GOP),
    ],
    ids=str,
)
@pytest.mark.parametrize("frames", [2, 3, 5, 9, 40])
def test_seeking_loses_no_frame(container, options, frames):
    """Against every frame decoded in a row by FFmpeg's own loop."""
    data = clip(container=container, **options)
    with av.open(io.BytesIO(data)) as source:
        whole = [frame.to_ndarray(format="rgb24") for frame in source.decode(video=0)]
    assert len(whole) == 40
    sampling = VideoSampling(frames=frames, max_frames=64)
    found = probe(data, sampling)
    wanted = np.round(np.array(found.timestamps) * 10).astype(int).tolist()
    assert wanted[0] == 0
    assert wanted[-1] == 39
    frames_found = decode(data, (HEIGHT, WIDTH), sampling, backend="pyav")
    assert [number_of(frame) for frame in frames_found] == wanted
    np.testing.assert_array_equal(frames_found, [whole[i] for i in wanted])


def test_variable_rate_is_sampled_in_time():
    # nine frames in the first 0.9 s, the last one 10 s later
    data = clip(container="matroska", stamps=[*range(9), 100])
    found = probe(data, VideoSampling(frames=3))
    assert found.timestamps == pytest.approx([0, 0.8, 10.0])
    frames = decode(data, (HEIGHT, WIDTH), VideoSampling(frames=3))
    assert [number_of(frame) for frame in frames] == [0, 8, 9]
    four = probe(data, VideoSampling(frames=5))
    assert four.timestamps == pytest.approx([0, 0.8, 0.8, 10.0, 10.0])
    frames = decode(data, (HEIGHT, WIDTH), VideoSampling(frames=5))
    assert [number_of(frame) for frame in frames] == [0, 8, 8, 9, 9]


def test_frames_by_rate():
    data = clip(count=40)  # 4 s
    assert probe(data, VideoSampling(fps=2)).frames == 8
    assert probe(data, VideoSampling(fps=2, max_frames=5)).frames == 5
    assert probe(data, VideoSampling(fps=100, max_frames=100)).frames == 40


@pytest.mark.parametrize("backend", ["auto", "pyav"])
@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts", "avi"])
def test_key_frames(container, backend):
    data = clip(container=container, **{"g": "15", "bf": "2", "x264-params": "scenecut=0"})
    sampling = VideoSampling(keyframes=True)
    found = probe(data, sampling)
    assert found.timestamps == pytest.approx([0, 1.5, 3.0])
    frames = decode(data, (HEIGHT, WIDTH), sampling, backend=backend)
    assert [number_of(frame) for frame in frames] == [0, 15, 30]


@needs_decord
@pytest.mark.parametrize(
    "options", [{}, {"codec": "libx265", "x265-params": "keyint=50:log-level=none"}], ids=str
)
def test_a_packet_without_a_picture_is_not_for_decord(options):
    """It would give a frame all the same: another one's."""
    data = bytearray(clip(**options))
    with av.open(io.BytesIO(data)) as source:
        packet = [packet for packet in source.demux(video=0) if packet.size][-1]
        end = {"h264": b"\x0a", "hevc": b"\x48\x01"}[source.streams.video[0].codec_context.name]
        body = end + bytes([0xFF]) * (packet.size - 4 - len(end))
        data[packet.pos + 4 : packet.pos + packet.size] = body
    assert len(decode(bytes(data), (28, 28), VideoSampling(frames=2), backend="decord")) == 2
    assert not is_plain(bytes(data))
    assert reason_of(decode, bytes(data), (28, 28), VideoSampling(frames=2)) is Reason.TRUNCATED


@pytest.mark.parametrize(("degrees", "turns"), [(90, 1), (180, 2), (270, 3), (-90, -1)])
def test_rotation(degrees, turns):
    straight = decode(clip(count=3), (HEIGHT, WIDTH), VideoSampling())
    data = clip(count=3, rotation=degrees)
    found = probe(data, VideoSampling())
    expected = np.rot90(straight, turns, axes=(1, 2))
    assert (found.height, found.width) == expected.shape[1:3]
    np.testing.assert_array_equal(decode(data, expected.shape[1:3], VideoSampling()), expected)


def test_path_and_bytes_are_alike(tmp_path):
    data = clip(count=5)
    file = tmp_path / "a:b %d.mp4"  # what FFmpeg would take for a protocol and a pattern
    file.write_bytes(data)
    assert probe(str(file), VideoSampling()) == probe(data, VideoSampling())
    for backend in ("auto", "pyav"):
        np.testing.assert_array_equal(
            decode(str(file), (28, 28), VideoSampling(), backend=backend),
            decode(data, (28, 28), VideoSampling(), backend=backend),
        )


def test_reader():
    reader = VideoReader(VideoSampling(frames=3), max_source_pixels=HEIGHT * WIDTH)
    data = clip()
    found = reader.probe(data)
    assert (found.kind, found.height, found.width, found.frames) == ("video", HEIGHT, WIDTH, 3)
    assert found.format == "h264"
    assert reader.decode(data, (28, 56)).shape == (3, 28, 56, 3)
    small = VideoReader(VideoSampling(), max_source_pixels=HEIGHT * WIDTH - 1)
    assert reason_of(small.probe, data) is Reason.TOO_MANY_PIXELS


def test_missing_file(tmp_path):
    assert reason_of(probe, str(tmp_path / "no.mp4"), VideoSampling()) is Reason.MISSING_FILE
    assert reason_of(probe, str(tmp_path), VideoSampling()) is Reason.MISSING_FILE


@pytest.mark.parametrize("junk", [b"", b"{}", b"<html>" * 50, b"\xff\xd8\xff" * 9, b"\0" * 500])
def test_not_a_video(junk):
    assert reason_of(probe, junk, VideoSampling()) is Reason.NOT_MEDIA
    assert reason_of(decode, junk, (28, 28), VideoSampling()) is Reason.NOT_MEDIA


def test_a_playlist_opens_nothing(tmp_path):
    """FFmpeg would follow a playlist's addresses; a stranger's bytes must not make us read our own files."""
    target = tmp_path / "secret.ts"
    target.write_bytes(clip(count=2, container="mpegts"))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n"
    listing = tmp_path / "list.m3u8"
    listing.write_text(playlist)
    assert reason_of(probe, str(listing), VideoSampling()) is Reason.NOT_MEDIA
    assert reason_of(probe, playlist.encode(), VideoSampling()) is Reason.NOT_MEDIA
    concat = f"ffconcat version 1.0\nfile {target}\n"
    assert reason_of(probe, concat.encode(), VideoSampling()) is Reason.NOT_MEDIA


def index_first(data, tmp_path):
    """The MP4 with its index before its frames, as a web server's files are; needs a real file."""
    path = tmp_path / "first.mp4"
    with (
        av.open(io.BytesIO(data)) as source,
        av.open(str(path), "w", options={"movflags": "faststart"}) as output,
    ):
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                output.mux(packet)
    moved = path.read_bytes()
    assert moved.index(b"moov") < moved.index(b"mdat") < len(moved) // 2
    return moved


def test_cut_clips_are_refused_or_whole(tmp_path):
    for data in (clip(count=20), index_first(clip(count=20), tmp_path)):
        # Where the last frame ends: what follows is only index or free text.
        frames_end = data.index(b"mdat") - 4 + int.from_bytes(data[data.index(b"mdat") - 4 :][:4])
        for length in range(0, len(data), max(1, len(data) // 60)):
            try:
                found = probe(data[:length], VideoSampling(frames=8))
            except BadSample:
                continue
            assert length >= frames_end
            assert found.frames == 8
            assert decode(data[:length], (28, 28), VideoSampling(frames=8)).shape == (8, 28, 28, 3)
        assert reason_of(probe, data[: len(data) // 2], VideoSampling()) is Reason.TRUNCATED


def test_damaged_bytes_never_raise_anything_else():
    rng = random.Random(3)
    whole = [clip(count=12), clip(count=12, container="matroska"), clip(count=12, container="mpegts")]
    outcomes = set()
    for _ in range(150):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = probe(bytes(data), VideoSampling(frames=3), max_source_pixels=10**6)
            frames = decode(bytes(data), (28, 56), VideoSampling(frames=3), backend="pyav")
            assert len(frames) == found.frames
            outcomes.add(found.kind)
        except BadSample as bad:
            outcomes.add(bad.reason if bad.detail else "no detail")
    assert {"video", Reason.DECODE_FAILED} <= outcomes
    assert "no detail" not in outcomes


@pytest.mark.parametrize("backend", [pytest.param("decord", marks=needs_decord), "pyav"])
def test_five_hundred_clips_leave_memory_flat(backend):
    sampling = asdict(VideoSampling(frames=8))
    settings = {"sampling": sampling, "max_source_pixels": 10**8, "backend": backend}
    data = [clip(**GOP), clip(count=12), clip(bf="0")]
    with WorkerPool(Limits(workers=1, timeout_s=60, memory=2**30)) as pool:
        reader = WorkerReader(pool, "video", settings)
        for number in range(600):
            if number == 100:
                before = pool.status().num_bytes
            assert reader.decode(data[number % len(data)], (224, 224)).shape == (8, 224, 224, 3)
        status = pool.status()
    assert (status.started, status.replaced) == (1, 0), "all in one process"
    assert status.num_bytes - before < 10 * 2**20  # one frame kept of each clip would be 75 MB
