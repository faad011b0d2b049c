"""Both decoders on pictures made here: they agree, refuse the same, and are what Pillow says they are."""

import io
import random
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import exif, jpeg
from dataloader_svc.media.base import MediaProbe
from dataloader_svc.media.image import ImageReader, decode, decode_any, decode_jpeg, probe
from dataloader_svc.media.pixels import resize, stored_size, upright

LIMIT = 10_000_000
PATH_TOLERANCE = 2  # of 255, anywhere: the two paths carry different builds of libjpeg-turbo
MEAN_TOLERANCE = 2.0  # of 255, for scaling in the decoder against scaling afterwards


def photo(height, width):
    """Smooth shapes with fine texture: what a photograph has and noise hasn't."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / 31 + y / 17), np.cos(x / 7 - y / 43), np.sin(np.hypot(x - width / 2, y) / 11)]
    grain = np.random.default_rng(5).normal(0, 6, (height, width, 3))
    return np.clip(128 + 80 * np.stack(waves, axis=-1) + grain, 0, 255).astype(np.uint8)


def encode(pixels, format_, mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, format_, **options)
    return file.getvalue()


def reason_of(call, *args, **kwargs):
    with pytest.raises(BadSample) as refused:
        call(*args, **kwargs)
    return refused.value.reason


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 90},
        {"quality": 90, "subsampling": 0},
        {"quality": 75, "progressive": True},
        {"mode": "L"},
        {"mode": "CMYK"},
        {"keep_rgb": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "size", [(280, 392), (140, 196), (84, 84), (420, 560), (28, 588), (150, 200), (75, 100), (38, 50)]
)
def test_both_jpeg_paths_agree(options, size):
    data = encode(photo(300, 400), "JPEG", **options)
    fast, slow = decode_jpeg(data, size), decode_any(data, size)
    assert fast.shape == slow.shape == (*size, 3)
    assert fast.dtype == slow.dtype == np.uint8
    assert np.abs(fast.astype(int) - slow).mean() <= MEAN_TOLERANCE


def test_jpeg_at_full_size_is_exact():
    data = encode(photo(120, 160), "JPEG", quality=95)
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(decode(data, (120, 160)), np.asarray(image))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_as_pillow_turns_it(orientation, format_):
    tags = Image.Exif()
    tags[0x0112] = orientation
    data = encode(photo(48, 80), format_, exif=tags, quality=95)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    found = probe(data, max_source_pixels=LIMIT)
    assert (found.height, found.width) == expected.shape[:2]
    np.testing.assert_array_equal(decode(data, expected.shape[:2]), expected)
    scaled = decode(data, (56, 28))
    assert np.abs(scaled.astype(int) - resize(expected, (56, 28))).mean() <= MEAN_TOLERANCE


def test_orientation_by_its_definition():
    corner = np.zeros((2, 3, 1), np.uint8)
    corner[0, 0] = 1  # stored top left
    shown_at = {1: (0, 0), 2: (0, 2), 3: (1, 2), 4: (1, 0), 5: (0, 0), 6: (0, 1), 7: (2, 1), 8: (2, 0)}
    for orientation, place in shown_at.items():
        shown = upright(corner, orientation)
        assert shown.shape[:2] == stored_size((2, 3), orientation)
        assert tuple(np.argwhere(shown[..., 0])[0]) == place, orientation
        assert shown.flags.c_contiguous


@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_by_hand(order):
    mark = b"II*\0" if order == "<" else b"MM\0*"

    def block(*entries):
        table = b"".join(struct.pack(order + "HHIHH", tag, kind, 1, value, 0) for tag, kind, value in entries)
        return mark + struct.pack(order + "IH", 8, len(entries)) + table

    assert exif.orientation(block((0x010F, 2, 9), (0x0112, 3, 6))) == 6
    assert exif.orientation(b"Exif\0\0" + block((0x0112, 3, 8))) == 8
    for unreadable in (
        block((0x0112, 3, 9)),
        block((0x0112, 3, 0)),
        block((0x0112, 2, 6)),
        block((0x010F, 2, 6)),
        block((0x0112, 3, 6))[:18],
        mark + struct.pack(order + "I", 10**9),
        b"",
        b"junk",
    ):
        assert exif.orientation(unreadable) == 1


@pytest.mark.parametrize("format_", ["PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_other_formats(format_):
    pixels = photo(60, 90)
    data = encode(pixels, format_, quality=95) if format_ != "GIF" else encode(pixels, "GIF")
    assert probe(data, max_source_pixels=LIMIT) == MediaProbe("image", 60, 90, format=format_.lower())
    lossless = format_ in ("PNG", "TIFF", "BMP")
    assert np.abs(decode(data, (60, 90)).astype(int) - pixels).mean() <= (0 if lossless else 12)


def test_reader_gives_one_frame():
    data = encode(photo(60, 90), "PNG")
    reader = ImageReader(LIMIT)
    assert reader.probe(data).frames == 1
    assert reader.decode(data, (28, 56)).shape == (1, 28, 56, 3)


def test_16_bits_are_scaled_not_clipped():
    ramp = np.linspace(0, 65535, 256 * 4).round().astype(np.uint16).reshape(4, 256)
    for format_ in ("PNG", "TIFF"):
        file = io.BytesIO()
        Image.fromarray(ramp).save(file, format_)
        grey = decode(file.getvalue(), (4, 256))
        np.testing.assert_array_equal(grey[..., 0], np.round(ramp / 257))
        assert (grey == grey[..., :1]).all()


def test_32_bits_have_no_white():
    file = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.float32)).save(file, "TIFF")
    assert reason_of(decode, file.getvalue(), (4, 4)) is Reason.DECODE_FAILED


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_on_white(mode):
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[..., 3] = np.arange(16).reshape(4, 4) * 17
    data = encode(pixels, "PNG", mode=mode)
    assert probe(data, max_source_pixels=LIMIT).has_alpha
    # black over white by alpha: 255 - alpha
    np.testing.assert_array_equal(decode(data, (4, 4)), np.repeat(255 - pixels[..., 3:], 3, axis=2))


def test_transparent_colour_on_white():
    file = io.BytesIO()
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[:2] = (1, 2, 3)
    Image.fromarray(pixels).save(file, "PNG", transparency=(1, 2, 3))
    shown = decode(file.getvalue(), (4, 4))
    assert (shown[:2] == 255).all()
    assert (shown[2:] == 0).all()


def test_resize_averages_down_and_interpolates_up():
    stripes = np.zeros((8, 8, 3), np.uint8)
    stripes[:, ::2] = 200
    assert (resize(stripes, (4, 4)) == 100).all()
    mixed = resize(stripes, (16, 4))  # taller, narrower
    assert mixed.shape == (16, 4, 3)
    assert (mixed == 100).all()
    assert resize(stripes, (8, 8)) is stripes


def test_pixel_limit_is_inclusive_and_from_the_header():
    data = encode(photo(20, 30), "JPEG")
    assert probe(data, max_source_pixels=600).width == 30
    assert reason_of(probe, data, max_source_pixels=599) is Reason.TOO_MANY_PIXELS
    assert reason_of(probe, encode(photo(20, 30), "PNG"), max_source_pixels=599) is Reason.TOO_MANY_PIXELS


def test_large_header_gives_no_warning():
    # 100 Mpixel is above the limit at which Pillow warns; warnings are errors in this suite.
    data = encode(np.zeros((10, 10, 3), np.uint8), "PNG")
    huge = data.replace(struct.pack(">II", 10, 10), struct.pack(">II", 10_000, 10_000), 1)
    huge = huge[:29] + struct.pack(">I", zlib.crc32(huge[12:29])) + huge[33:]
    assert probe(huge, max_source_pixels=100_000_000).height == 10_000
    assert reason_of(probe, huge, max_source_pixels=99_999_999) is Reason.TOO_MANY_PIXELS


CUT = [
    ("JPEG", {}, True),
    ("JPEG", {"progressive": True}, True),
    ("JPEG", {"mode": "CMYK"}, True),
    ("PNG", {}, True),
    ("WEBP", {}, True),
    ("TIFF", {}, False),
    ("BMP", {}, False),
]


@pytest.mark.parametrize(("format_", "options", "at_probe"), CUT, ids=str)
def test_cut_anywhere_is_never_a_picture(format_, options, at_probe):
    data = encode(photo(40, 60), format_, **options)
    for length in range(64, len(data), max(1, len(data) // 40)):
        cut = data[:length]
        assert reason_of(decode, cut, (40, 60)) in (Reason.TRUNCATED, Reason.DECODE_FAILED), length
        if at_probe:
            assert reason_of(probe, cut, max_source_pixels=LIMIT) is Reason.TRUNCATED, length
    assert reason_of(decode, data[:-30], (40, 60)) is Reason.TRUNCATED


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_cut_jpeg_with_an_end_marker_is_an_error_too(mode):
    data = encode(photo(40, 60), "JPEG", mode=mode)
    mended = data[: len(data) * 2 // 3] + b"\xff\xd9"
    assert probe(mended, max_source_pixels=LIMIT).height == 40  # only decoding can tell
    assert reason_of(decode, mended, (40, 60)) is Reason.DECODE_FAILED


def test_jpeg_header_survives_fill_and_stray_bytes():
    data = encode(photo(20, 30), "JPEG")
    # after the start marker: stray bytes, then fill bytes before the next marker
    odd = data[:2] + b"\xff\xff" + data[2:]
    assert jpeg.read_header(odd) == jpeg.JpegHeader(20, 30, 3, 1)
    odd = data[:2] + data[2:20] + b"\x00\x01\x02" + data[20:]
    assert jpeg.read_header(odd) == jpeg.JpegHeader(20, 30, 3, 1)


@pytest.mark.parametrize(
    "junk", [b"", b"{}", b"<html>", b"%!PS-Adobe-3.0", b"P6 1 1 255 abc", b"\0" * 100, b"8BPS\0\1"]
)
def test_not_a_picture(junk):
    assert reason_of(probe, junk, max_source_pixels=LIMIT) is Reason.NOT_MEDIA
    assert reason_of(decode, junk, (28, 28)) is Reason.NOT_MEDIA


def test_what_the_fast_path_cannot_take_goes_to_pillow(monkeypatch):
    """No encoder here makes odd sampling factors, so the refusal is said for libjpeg-turbo."""

    def refuse(*_args, **_kwargs):
        raise ValueError("tjDecompressHeader3(): Could not determine subsampling level of JPEG image")

    data = encode(photo(48, 64), "JPEG")
    expected = decode(data, (48, 64))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", refuse)
    np.testing.assert_array_equal(decode(data, (48, 64)), expected)


def test_damaged_bytes_never_raise_anything_else():
    rng = random.Random(11)
    whole = [encode(photo(40, 60), f) for f in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "AVIF")]
    whole.append(encode(photo(40, 60), "JPEG", progressive=True))
    outcomes = set()
    for _ in range(400):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = probe(bytes(data), max_source_pixels=LIMIT)
            assert decode(bytes(data), (28, 56)).shape == (28, 56, 3)
            outcomes.add(found.kind)
        except BadSample as bad:
            outcomes.add(bad.reason if bad.detail else "no detail")
    assert {"image", Reason.DECODE_FAILED, Reason.TRUNCATED} <= outcomes
    assert "no detail" not in outcomes


def test_threads_decode_alike():
    files = [encode(photo(90 + i, 120), f) for i in range(6) for f in ("JPEG", "PNG", "WEBP")]
    alone = [decode(data, (56, 84)) for data in files]
    with ThreadPoolExecutor(4) as pool:
        for expected, found in zip(
            alone * 3, pool.map(lambda d: decode(d, (56, 84)), files * 3), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
