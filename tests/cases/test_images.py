"""Trouble cases 01 to 14: pictures that broke other loaders. What is right stands beside each in data/."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import image
from dataloader_svc.transforms.vision import VisionRule, grid, num_tokens, smart_resize, to_patches

DATA = Path(__file__).parent / "data"
RULE = VisionRule()
RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 180, 30), (30, 30, 220), (240, 240, 240)


def read(name):
    return (DATA / name).read_bytes()


def shown(name):
    """At its own size, which the probe must have said."""
    data = read(name)
    found = image.probe(data, max_source_pixels=RULE.max_source_pixels)
    pixels = image.decode(data, (found.height, found.width))
    assert pixels.shape == (found.height, found.width, 3)
    assert pixels.dtype == np.uint8
    return pixels


def refused(name):
    """The reason, which must be known from the header alone."""
    with pytest.raises(BadSample) as bad:
        image.probe(read(name), max_source_pixels=RULE.max_source_pixels)
    return bad.value.reason


def assert_near(found, expected, tolerance):
    assert np.abs(np.asarray(found, int) - expected).max() <= tolerance, f"{found} is not near {expected}"


def assert_corners(pixels, tolerance, inset=8):
    assert_near(pixels[inset, inset], RED, tolerance)
    assert_near(pixels[inset, -inset], GREEN, tolerance)
    assert_near(pixels[-inset, inset], BLUE, tolerance)
    assert_near(pixels[-inset, -inset], WHITE, tolerance)


def test_01_truncated_jpeg():
    good = shown("01-truncated-jpeg/good.jpg")
    assert good.shape == (64, 96, 3)
    assert_near(good[8, 8], RED, 6)
    assert_near(good[8, 88], GREEN, 6)
    assert refused("01-truncated-jpeg/cut.jpg") is Reason.TRUNCATED
    with pytest.raises(BadSample):
        image.decode(read("01-truncated-jpeg/cut.jpg"), (64, 96))


@pytest.mark.parametrize("name", ["cmyk_adobe.jpg", "cmyk_no_marker.jpg"])
def test_02_cmyk(name):
    pixels = shown(f"02-cmyk-jpeg/{name}")
    assert pixels.shape == (48, 64, 3)
    assert_corners(pixels, 8)


@pytest.mark.parametrize("name", ["palette.png", "rgba.png"])
def test_04_palette_and_alpha(name, recwarn):
    pixels = shown(f"04-palette-and-alpha/{name}")
    assert pixels.shape == (16, 64, 3)
    for column, colour in ((8, RED), (24, (142, 217, 142)), (40, (255, 255, 255)), (56, (0, 0, 0))):
        assert_near(pixels[8, column], colour, 2)
    assert not recwarn


def test_04_grey_and_alpha():
    pixels = shown("04-palette-and-alpha/la.png")
    assert_near(pixels[8, [8, 24, 40, 56]], np.array([[60], [157], [255], [0]]), 2)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_05_exif_orientation(orientation):
    pixels = shown(f"05-exif-orientation/ori{orientation}.jpg")
    assert pixels.shape == (48, 80, 3)
    assert_corners(pixels, 8)


@pytest.mark.parametrize("name", ["anim.webp", "anim.png", "anim.gif"])
def test_07_animated_images_give_frame_0(name):
    pixels = shown(f"07-animated-images/{name}")
    assert pixels.shape == (30, 40, 3)
    assert_near(pixels, RED, 3)


def test_08_decompression_bomb():
    data = read("08-decompression-bomb/bomb.png")
    image.probe(read("08-decompression-bomb/fat_comment.png"), max_source_pixels=RULE.max_source_pixels)
    tracemalloc.start()
    assert refused("08-decompression-bomb/bomb.png") is Reason.TOO_MANY_PIXELS
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(data)


def test_08_large_and_legal():
    data = read("08-decompression-bomb/big_but_fine.png")
    found = image.probe(data, max_source_pixels=RULE.max_source_pixels)
    size = smart_resize(found.height, found.width, RULE)
    assert (image.decode(data, size) == 255).all()


def test_08_fat_comment():
    pixels = shown("08-decompression-bomb/fat_comment.png")
    assert pixels.shape == (16, 32, 3)
    assert_near(pixels[2, 2], RED, 0)


def test_10_progressive():
    baseline = shown("10-progressive-jpeg/baseline.jpg")
    progressive = shown("10-progressive-jpeg/progressive.jpg")
    assert baseline.shape == (64, 96, 3)
    assert_near(progressive, baseline.astype(int), 2)
    assert refused("10-progressive-jpeg/progressive_cut.jpg") is Reason.TRUNCATED


THIN = {"w1_h1": 4, "w1_h3": 8, "w3_h1": 8, "w3_h3": 4, "w332_h27": 12, "w690_h15420": 1183}


@pytest.mark.parametrize(("name", "tokens"), THIN.items())
def test_11_tiny_and_thin_are_kept(name, tokens):
    pixels = shown(f"11-tiny-and-thin-images/{name}.png")
    width, height = (int(part[1:]) for part in name.split("_"))
    assert pixels.shape == (height, width, 3)
    colour = (128, 128, 128) if name == "w690_h15420" else RED
    assert (pixels == colour).all()
    size = smart_resize(height, width, RULE)
    assert num_tokens(1, *grid(*size, RULE), RULE) == tokens
    scaled = image.decode(read(f"11-tiny-and-thin-images/{name}.png"), size)
    assert (scaled == colour).all()
    assert to_patches(scaled[None], RULE).shape == (4 * tokens, 588)


@pytest.mark.parametrize("name", ["w1_h400.png", "w400_h1.png"])
def test_11_a_line_is_skipped(name):
    pixels = shown(f"11-tiny-and-thin-images/{name}")
    with pytest.raises(BadSample) as bad:
        smart_resize(*pixels.shape[:2], RULE)
    assert bad.value.reason is Reason.BAD_SHAPE


def test_13_not_an_image():
    assert refused("13-not-an-image/page.jpg") is Reason.NOT_MEDIA
    assert refused("13-not-an-image/api.png") is Reason.NOT_MEDIA
    good = shown("13-not-an-image/good.png")
    assert good.shape == (16, 16, 3)
    assert (good == (80, 100, 175)).all()


@pytest.mark.parametrize("name", ["bad_exif.jpg", "rgb_coded.jpg", "trailing_junk.jpg"])
def test_14_jpeg_oddities(name):
    pixels = shown(f"14-jpeg-oddities/{name}")
    assert pixels.shape == (32, 48, 3)
    assert_corners(pixels, 8)
