"""Pictures of the demo: a few dozen real originals, cut and scaled to hundreds, with true captions.

The originals are small, so the large results are enlargements or contact sheets. What matters to a data
service is real here: sides from 100 to 4,000 pixels, shapes up to 4:1, three formats, odd colour modes,
progressive files, cameras held sideways. Knows nothing of tar files; `make_data.py` packs what is made here.
"""

from __future__ import annotations

import inspect
import io
import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from PIL import Image
from recipe import RecipeError, keyed

SIDES = (100, 4000)
MAX_ASPECT = 4.0
WHITE = (255, 255, 255)

SKIMAGE_ORIGINALS = {
    # file: (function of skimage.data that describes it, rights as that description states them)
    "astronaut.png": ("astronaut", "NASA, public domain"),
    "brick.png": ("brick", "CC0"),
    "camera.png": ("camera", "CC0, Lav Varshney"),
    "cell.png": ("cell", "CC0"),
    "chelsea.png": ("chelsea", "CC0, Stefan van der Walt"),
    "chessboard_GRAY.png": ("checkerboard", "BSD-3-Clause, scikit-image"),
    "clock_motion.png": ("clock", "public domain, Stefan van der Walt"),
    "coffee.png": ("coffee", "CC0, Rachel Michetti"),
    "coins.png": ("coins", "Brooklyn Museum, no known copyright restrictions"),
    "color.png": ("colorwheel", "BSD-3-Clause, scikit-image"),
    "grass.png": ("grass", "CC0"),
    "gravel.png": ("gravel", "CC0"),
    "horse.png": ("horse", "CC0, Andreas Preuss"),
    "hubble_deep_field.jpg": ("hubble_deep_field", "NASA, public domain"),
    "ihc.png": ("immunohistochemistry", "CMMI, no known copyright restrictions"),
    "logo.png": ("logo", "BSD-3-Clause, scikit-image"),
    "microaneurysms.png": ("microaneurysms", "CC0, Andreas Maier"),
    "moon.png": ("moon", "BSD-3-Clause, scikit-image"),
    "page.png": ("page", "BSD-3-Clause, scikit-image"),
    "phantom.png": ("shepp_logan_phantom", "BSD-3-Clause, scikit-image"),
    "retina.jpg": ("retina", "CC0, Mikael Häggström"),
    "rocket.jpg": ("rocket", "SpaceX, public domain"),
    "text.png": ("text", "public domain"),
}


@dataclass(frozen=True, slots=True)
class Original:
    """A picture before it is cut. `details`: sentences that may follow the title in a caption."""

    name: str
    picture: Image.Image
    title: str
    details: str
    rights: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A finished row: encoded picture, caption, and what was done, as JSON."""

    extension: str
    picture: bytes
    caption: str
    record: bytes
    size: tuple[int, int]


def load_originals(video: Path) -> list[Original]:
    """The pictures that scikit-image's wheel carries (nothing is fetched), and stills of one film."""
    import skimage.data

    folder = Path(inspect.getfile(skimage)).parent / "data"
    originals: list[Original] = []
    for file, (function, rights) in SKIMAGE_ORIGINALS.items():
        if not (folder / file).is_file():
            continue
        with Image.open(folder / file) as opened:
            picture = opened.copy()
        title, details = _description(getattr(skimage.data, function).__doc__ or file)
        originals.append(Original(file.split(".")[0], picture, title, details, rights))
    if len(originals) < 10:
        raise RecipeError(
            f"{folder} holds {len(originals)} of {len(SKIMAGE_ORIGINALS)} pictures; reinstall scikit-image"
        )
    return originals + film_stills(video)


def _description(docstring: str) -> tuple[str, str]:
    """First sentence, and the prose that follows up to the sections on arguments and results."""
    text = inspect.cleandoc(docstring)
    prose = re.split(r"\n(?:Parameters|Returns|Notes|References)\n-", text)[0]
    title, *rest = prose.split("\n\n")
    details = " ".join(" ".join(rest).split())
    return " ".join(title.split()), re.sub(r"<[^>]*>`?_*|\[\d\]_|`", "", details).strip()


def film_stills(video: Path) -> list[Original]:
    """Every tenth frame of the Big Buck Bunny excerpt: 1280 x 720, the sharpest pictures we have."""
    details = (
        "A large grey rabbit comes out of its burrow under a tree on a green hill, stretches, "
        "and looks into the morning."
    )
    stills: list[Original] = []
    with av.open(str(video)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number % 10 == 0:
                title = f"A frame of the film Big Buck Bunny, {number / 25:.1f} seconds into the excerpt."
                rights = "CC BY 3.0, Blender Foundation"
                stills.append(Original(f"bunny{number:03d}", frame.to_image(), title, details, rights))
    return stills


def make_sample(originals: Sequence[Original], seed: int, number: int) -> Sample:
    """Row `number`: depends on the seed and the number alone, so rows can be made in any order."""
    rng = keyed(seed, "picture", number)
    width, height = _wanted_size(rng)
    if max(width, height) > 1200 and rng.random() < 0.7:
        picture, caption, used = _contact_sheet(originals, rng, width, height)
    else:
        picture, caption, used = _single(originals, rng, width, height)
    extension, encoded, how = _encode(picture, rng)
    record = {
        "originals": [original.name for original in used],
        "rights": sorted({original.rights for original in used}),
        "width": width,
        "height": height,
        "encoding": how,
    }
    return Sample(extension, encoded, caption, json.dumps(record).encode(), (width, height))


def _wanted_size(rng: random.Random) -> tuple[int, int]:
    """The longer side log-uniform over SIDES, the shape up to MAX_ASPECT to 1, lying or standing."""
    low, high = SIDES
    longer = math.exp(rng.uniform(math.log(low), math.log(high)))
    aspect = math.exp(rng.uniform(0.0, math.log(min(MAX_ASPECT, longer / low))))
    sides = (round(longer), max(low, round(longer / aspect)))
    return sides if rng.random() < 0.6 else (sides[1], sides[0])


def _crop_box(
    rng: random.Random, original: tuple[int, int], wanted: tuple[int, int]
) -> tuple[int, int, int, int]:
    """A box of the wanted shape somewhere in the original, from a third of its size to all of it."""
    aspect = wanted[0] / wanted[1]
    width = min(original[0], original[1] * aspect)
    scale = rng.choice((1.0, rng.uniform(0.35, 1.0), rng.uniform(0.35, 1.0)))
    crop_width, crop_height = max(1, int(width * scale)), max(1, int(width / aspect * scale))
    left, top = rng.randint(0, original[0] - crop_width), rng.randint(0, original[1] - crop_height)
    return left, top, left + crop_width, top + crop_height


def _single(
    originals: Sequence[Original], rng: random.Random, width: int, height: int
) -> tuple[Image.Image, str, list[Original]]:
    original = rng.choice(originals)
    box = _crop_box(rng, original.picture.size, (width, height))
    picture = original.picture.resize((width, height), Image.Resampling.BICUBIC, box=box)
    sentences = [original.title]
    if rng.random() < 0.75:
        sentences.append(_view(box, original.picture.size, width))
    if rng.random() < 0.5:
        sentences.append(original.details)
    return picture, " ".join(sentence for sentence in sentences if sentence), [original]


def _view(box: tuple[int, int, int, int], size: tuple[int, int], width: int) -> str:
    """What part of the original is seen, in words, and how much enlarged."""
    covered = (box[2] - box[0]) * (box[3] - box[1]) / (size[0] * size[1])
    across = (box[0] + box[2]) / 2 / size[0]
    down = (box[1] + box[3]) / 2 / size[1]
    column = "left" if across < 0.42 else "right" if across > 0.58 else ""
    row = "upper" if down < 0.42 else "lower" if down > 0.58 else ""
    place = " ".join(word for word in (row, column) if word) or "middle"
    scale = width / (box[2] - box[0])
    size_words = f"enlarged {scale:.1f} times" if scale > 1.05 else f"at {scale:.0%} of its size"
    if covered > 0.9:
        return f"The whole picture, {size_words}."
    return f"The {place} part, {covered:.0%} of the picture, {size_words}."


def _contact_sheet(
    originals: Sequence[Original], rng: random.Random, width: int, height: int
) -> tuple[Image.Image, str, list[Original]]:
    """Rows and columns of pictures on white: what fills 4,000 pixels without inventing any."""
    cell = rng.uniform(300, 900)
    columns, rows = max(1, round(width / cell)), max(1, round(height / cell))
    sheet = Image.new("RGB", (width, height), WHITE)
    used: list[Original] = []
    lines: list[str] = []
    for row in range(rows):
        names: list[str] = []
        for column in range(columns):
            left, right = column * width // columns, (column + 1) * width // columns
            top, bottom = row * height // rows, (row + 1) * height // rows
            original = rng.choice(originals)
            inner = (max(1, right - left - 8), max(1, bottom - top - 8))
            box = _crop_box(rng, original.picture.size, inner)
            part = original.picture.resize(inner, Image.Resampling.BILINEAR, box=box)
            sheet.paste(on_white(part), (left + 4, top + 4))
            used.append(original)
            names.append(original.title.rstrip("."))
        lines.append(f"Row {row + 1}: {'; '.join(names)}.")
    caption = f"A contact sheet of {rows} by {columns} pictures. " + " ".join(lines)
    return sheet, caption, used


def on_white(picture: Image.Image) -> Image.Image:
    """RGB, transparent parts white."""
    if picture.mode != "RGBA":
        return picture.convert("RGB")
    page = Image.new("RGB", picture.size, WHITE)
    page.paste(picture, mask=picture.getchannel("A"))
    return page


def _encode(picture: Image.Image, rng: random.Random) -> tuple[str, bytes, str]:
    """(extension, bytes, what was done): two thirds JPEG, the rest PNG and WebP, some of each kind odd."""
    large = picture.width * picture.height > 3_000_000
    draw = rng.random()
    # PNG and WebP of many megapixels cost seconds each; the web has few of them either.
    if large and draw >= 0.66:
        draw = 0.66 * (draw - 0.66) / 0.34 if rng.random() < 0.7 else draw
    if draw < 0.66:
        return _encode_jpeg(picture, rng)
    return _encode_png(picture, rng) if draw < 0.85 else _encode_webp(picture, rng)


def _encode_jpeg(picture: Image.Image, rng: random.Random) -> tuple[str, bytes, str]:
    quality = rng.randint(35, 95)
    progressive = rng.random() < 0.1
    flat = picture if picture.mode == "L" else on_white(picture)
    how = f"JPEG quality {quality}{' progressive' if progressive else ''}"
    exif = Image.Exif()
    draw = rng.random()
    if draw < 0.05:
        # Stored as the sensor of a camera on its side sees it; orientation 6 turns it back.
        flat = flat.transpose(Image.Transpose.ROTATE_90)
        exif[0x0112] = 6
        how += " orientation 6"
    elif draw < 0.07:
        flat = flat.convert("CMYK")
        how += " CMYK"
    stream = io.BytesIO()
    subsampling = -1 if flat.mode != "RGB" else rng.choice((0, 1, 2, 2, 2))
    flat.save(stream, "JPEG", quality=quality, progressive=progressive, subsampling=subsampling, exif=exif)
    return "jpg", stream.getvalue(), how


def _encode_png(picture: Image.Image, rng: random.Random) -> tuple[str, bytes, str]:
    draw = rng.random()
    if picture.mode == "RGBA" and draw < 0.7:
        converted = picture
    elif draw < 0.3:
        converted = on_white(picture).quantize(rng.choice((16, 64, 256)), Image.Quantize.FASTOCTREE)
    elif draw < 0.5:
        converted = on_white(picture).convert("L")
    elif draw < 0.55:
        grey = np.asarray(on_white(picture).convert("L"), dtype=np.uint16)
        converted = Image.fromarray(grey * 257)
    else:
        converted = picture if picture.mode == "L" else on_white(picture)
    stream = io.BytesIO()
    converted.save(stream, "PNG", compress_level=2)
    return "png", stream.getvalue(), f"PNG {converted.mode}"


def _encode_webp(picture: Image.Image, rng: random.Random) -> tuple[str, bytes, str]:
    lossless = rng.random() < 0.15 and picture.width * picture.height < 500_000
    quality = rng.randint(40, 90)
    stream = io.BytesIO()
    flat = picture if picture.mode in ("RGB", "RGBA") else picture.convert("RGB")
    flat.save(stream, "WEBP", quality=quality, lossless=lossless, method=0 if lossless else 1)
    return "webp", stream.getvalue(), "WebP lossless" if lossless else f"WebP quality {quality}"
