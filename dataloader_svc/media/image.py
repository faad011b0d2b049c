"""Pictures: size from the header, pixels at exactly the size that was planned.

JPEG, most of what there is, goes through libjpeg-turbo (`simplejpeg`), which scales while it decodes and
can be told that a warning is an error; everything else, and what libjpeg-turbo's simple interface doesn't
take, through Pillow. Both scale alike in the decoder and end in the same resize: their pixels differ by
at most 2 of 255 (tested; with today's wheels they are equal, but for CMYK). Both release the interpreter
lock and share no state.

Rules of a picture: the content decides, never the name. Shown upright (EXIF). Alpha and transparent
palettes are composited on white. Animations give their first frame. 16-bit samples are scaled to 8. Colour
profiles are not applied. Half a picture is no picture.
Knows nothing of patches (`transforms/vision.py`) and opens no files.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, UnidentifiedImageError

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media import exif, jpeg
from dataloader_svc.media.base import MediaProbe, check_size
from dataloader_svc.media.pixels import resize, stored_size, upright

# What Pillow may try. Not all it knows: others run interpreters (EPS) or have no defined RGB.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF")
_SIGNATURES = (jpeg.SIGNATURE, b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*", b"BM")

# Pillow has these per process only. Its own bomb check warns, once a picture, from 89 Mpixel on; ours is
# configurable and comes before any memory is taken. AVIF threads would multiply with the loader's own.
Image.MAX_IMAGE_PIXELS = None
AvifImagePlugin.DEFAULT_MAX_THREADS = 1


@dataclass(frozen=True, slots=True)
class ImageReader:
    """`MediaReader` of pictures."""

    max_source_pixels: int

    def probe(self, data: bytes) -> MediaProbe:
        return probe(data, max_source_pixels=self.max_source_pixels)

    def decode(self, data: bytes, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
        return decode(data, size_hw)[np.newaxis]


def probe(data: bytes, *, max_source_pixels: int) -> MediaProbe:
    """Size as shown and format, from the header alone: 10 us for a JPEG, 100 us for another.

    Raises BadSample NOT_MEDIA, TOO_MANY_PIXELS, BAD_SHAPE, DECODE_FAILED, and TRUNCATED where a cut shows
    without decoding (JPEG, PNG, WebP).
    """
    if data.startswith(jpeg.SIGNATURE):
        header = jpeg.read_header(data)
        height, width = stored_size((header.height, header.width), header.orientation)
        found = MediaProbe("image", height, width, format="jpeg")
    else:
        with _opened(data) as image:
            size = (image.height, image.width)
            height, width = stored_size(size, _orientation(image))
            found = MediaProbe(
                "image",
                height,
                width,
                format=(image.format or "").lower(),
                has_alpha=image.has_transparency_data,
            )
    check_size(found.height, found.width, max_source_pixels)
    return found


def decode(data: bytes, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """Pixels, uint8 RGB (height, width, 3), upright, scaled to exactly `size_hw` = (height, width).

    `probe` comes first: here nothing is refused for its size. Raises BadSample TRUNCATED (never part of a
    picture), DECODE_FAILED, NOT_MEDIA.
    """
    if data.startswith(jpeg.SIGNATURE):
        return decode_jpeg(data, size_hw)
    return decode_any(data, size_hw)


def decode_jpeg(data: bytes, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """`decode` by libjpeg-turbo: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK, 8 bits.

    Falls back to `decode_any` for what its interface doesn't take (odd subsampling, 12 bits).
    """
    header = jpeg.read_header(data)
    height, width = stored_size(size_hw, header.orientation)
    try:
        colours = "CMYK" if header.components == 4 else "RGB"
        least = _scaled_in_decoder((header.height, header.width), (height, width))
        # A warning raises: strict is the default, and no picture of ours may have one.
        pixels = simplejpeg.decode_jpeg(data, colours, min_height=least[0], min_width=least[1])
    except ValueError as error:
        message = str(error)
        if message.startswith("Premature end"):
            raise BadSample(Reason.TRUNCATED, f"JPEG: {message}") from None
        if message.startswith("Corrupt JPEG data"):
            # Pillow would ignore this and deliver the grey or shifted rest.
            raise BadSample(Reason.DECODE_FAILED, f"JPEG: {message}") from None
        return decode_any(data, size_hw)
    if header.components == 4:
        pixels = _cmyk_to_rgb(pixels)
    return upright(resize(pixels, (height, width)), header.orientation)


def _scaled_in_decoder(full: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """The smallest of full, 1/2, 1/4 and 1/8 size that is not below `wanted` on either side.

    The decoder knows all eighths, but only these have vector code: 7/8 takes 2.5 times as long as the
    whole. Pillow's draft mode chooses alike, so both paths resize the same pixels.
    """
    ratio = min(full[0] // wanted[0], full[1] // wanted[1])
    for divisor in (8, 4, 2):
        if ratio >= divisor:
            return -(-full[0] // divisor), -(-full[1] // divisor)
    return full


def _cmyk_to_rgb(inks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, 4) as JPEG files hold it, 255 for no ink (Adobe's way; others don't exist in practice)."""
    # The decoder's own conversion is 1 too bright.
    product = inks[..., :3].astype(np.uint16) * inks[..., 3:]
    return ((product + 127) // 255).astype(np.uint8)


def decode_any(data: bytes, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    """`decode` by Pillow, every format."""
    with _opened(data) as image:
        orientation = _orientation(image)
        stored = stored_size(size_hw, orientation)
        if image.format in ("JPEG", "MPO"):
            image.draft(image.mode, stored[::-1])
        pixels = _rgb_on_white(image)
        # A TIFF turns itself upright while it loads, so its orientation was 1 and `stored` is `size_hw`.
    return upright(resize(pixels, stored), orientation)


def _rgb_on_white(image: Image.Image) -> NDArray[np.uint8]:
    """Load the first frame and convert whatever it holds to RGB (H, W, 3)."""
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips at 255 instead of scaling.
        grey = (np.asarray(image).astype(np.uint32) * 255 + 32767) // 65535
        return np.repeat(grey.astype(np.uint8)[..., np.newaxis], 3, axis=2)
    if image.mode in ("I", "F"):
        raise BadSample(Reason.DECODE_FAILED, f"{image.format} with 32-bit samples: their white is undefined")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.new("RGBA", layer.size, "white")
        image.alpha_composite(layer)
    return np.asarray(image.convert("RGB"))


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """`data` opened by Pillow; whatever Pillow raises, inside the block too, is a BadSample."""
    if _is_cut(data):
        raise BadSample(Reason.TRUNCATED, f"only {len(data)} bytes, fewer than the header promises")
    try:
        with _open(data) as image:
            yield image
    except (BadSample, MemoryError):  # no memory is our trouble, not the picture's
        raise
    except Exception as error:  # a decoder may raise anything at all on a stranger's bytes
        raise BadSample(_reason(data, error), _describe(data, error)) from error


def _open(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except ValueError:
        # Pillow refuses a PNG whose text is above 1 MiB unpacked; the pixels may be fine.
        if not data.startswith(_PNG):
            raise
        return Image.open(io.BytesIO(_png_without_text(data)), formats=_FORMATS)


def _orientation(image: Image.Image) -> int:
    blob = image.info.get("exif")
    # Pillow turns a TIFF itself, and gives its size as turned.
    return exif.orientation(blob) if isinstance(blob, bytes) and image.format != "TIFF" else 1


def _reason(data: bytes, error: Exception) -> Reason:
    if isinstance(error, UnidentifiedImageError) and not data.startswith(_SIGNATURES):
        return Reason.NOT_MEDIA
    return Reason.TRUNCATED if "truncated" in str(error) else Reason.DECODE_FAILED


def _describe(data: bytes, error: Exception) -> str:
    what = "" if isinstance(error, UnidentifiedImageError) else f"{type(error).__name__}: {error}; "
    return f"{what}{len(data)} bytes that begin with {data[:16]!r}"


_PNG = _SIGNATURES[1]


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each chunk's type, start and end, to the first that isn't there whole."""
    position = len(_PNG)
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position : position + 4])
        if end > len(data):
            return
        yield data[position + 4 : position + 8], position, end
        position = end


def _png_without_text(data: bytes) -> bytes:
    text = (b"tEXt", b"zTXt", b"iTXt")
    return _PNG + b"".join(data[start:end] for kind, start, end in _png_chunks(data) if kind not in text)


def _is_cut(data: bytes) -> bool:
    """Whether a PNG or WebP ends before it says so. Costs a step a chunk, no decoding."""
    if data.startswith(_PNG):
        return all(kind != b"IEND" for kind, _, _ in _png_chunks(data))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return 8 + int.from_bytes(data[4:8], "little") > len(data) + 1  # the padding byte may be missing
    return False
