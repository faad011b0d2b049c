"""A step as one HTML page that needs nothing else: no script, no font, no picture from anywhere.

Pure: a `StepView` in, text out. What the data holds is escaped, and the page's own policy forbids the browser
to load or run anything, whatever stands in a text. Layout and colours are in `preview.html`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import jinja2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dataloader_svc.cli.contents import Clip, Content, Medium, PieceKey, Run
from dataloader_svc.cli.step_view import PieceView, SequenceView, StepView, colours

_IMAGE_SIDE, _FRAME_SIDE, _FRAMES = 420, 180, 16
_PAGE_BYTES = 24 << 20  # of pictures; beyond it a page is no longer passed on, and browsers get slow
_OVERVIEW = 256  # sequences drawn in the overview


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece as part of a sequence's bar; places in percent of the sequence length.

    media   (left, width) of its pictures, videos and sound, in percent of the piece
    """

    piece: PieceView
    left: float
    width: float
    media: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A medium on the page. `uris` is empty where the page has no room left for it."""

    medium: Medium | Clip
    uris: tuple[str, ...]


def render_page(view: StepView, *, version: str, source_file: str, max_bytes: int = _PAGE_BYTES) -> str:
    """The page. `max_bytes` bounds its pictures; those beyond are outlines with their size."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = files("dataloader_svc.cli").joinpath("preview.html").read_text(encoding="utf-8")
    contents = view.shown_contents()
    media = [medium for content in contents for medium in content.media]
    shown_tokens = sum(sequence.tokens for sequence in view.shown_sequences())
    return environment.from_string(text).render(
        view=view,
        version=version,
        source_file=source_file,
        colours=colours([source.name for source in view.sources]),
        overview=view.sequences[:_OVERVIEW],
        bars=lambda sequence: bars(sequence, view.sequence_length),
        dearest=max((sequence.llm_cost for sequence in view.sequences), default=0.0) or 1.0,
        parts=page_parts(view, max_bytes),
        num_images=sum(medium.kind == "image" for medium in media),
        num_videos=sum(medium.kind == "video" for medium in media),
        num_clips=sum(medium.kind == "audio" for medium in media),
        target_share=sum(content.targets for content in contents) / max(1, shown_tokens),
        is_run=lambda part: isinstance(part, Run),
    )


def bars(sequence: SequenceView, sequence_length: int) -> list[Bar]:
    """The pieces of a sequence as parts of a bar of `sequence_length` tokens."""
    result = []
    at = 0
    for piece in sequence.pieces:
        length = piece.key.length
        media = tuple(_media_places(piece.content, length)) if piece.content is not None else ()
        result.append(Bar(piece, 100 * at / sequence_length, 100 * length / sequence_length, media))
        at += length
    return result


def _media_places(content: Content, length: int) -> Iterator[tuple[float, float]]:
    at = 0
    for part in content.parts:
        if not isinstance(part, Run):
            yield 100 * at / length, 100 * part.tokens / length
        at += part.tokens


def page_parts(view: StepView, max_bytes: int) -> dict[PieceKey, list[Run | Picture]]:
    """What the shown pieces are drawn from. Pictures are made in the order of the page while they fit."""
    left = max_bytes
    result: dict[PieceKey, list[Run | Picture]] = {}
    for sequence in view.shown_sequences():
        for piece in sequence.pieces:
            drawn = result.setdefault(piece.key, [])
            for part in piece.content.parts if piece.content is not None else ():
                if isinstance(part, Run):
                    drawn.append(part)
                    continue
                picture = _picture(part) if left > 0 else Picture(part, ())
                size = sum(map(len, picture.uris))
                drawn.append(picture if size <= left else Picture(part, ()))
                left -= size
    return result


def _picture(medium: Medium | Clip) -> Picture:
    frames = medium.frames()
    side = _FRAME_SIDE if medium.kind == "video" else _IMAGE_SIDE
    chosen = np.linspace(0, len(frames) - 1, min(len(frames), _FRAMES)).round().astype(int)
    return Picture(medium, tuple(data_uri(frames[number], side) for number in chosen))


def data_uri(frame: NDArray[np.uint8], max_side: int) -> str:
    """A picture (H, W, 3), scaled down to `max_side`, inside a URI: PNG or JPEG, whichever is smaller."""
    image = Image.fromarray(frame)
    image.thumbnail((max_side, max_side), Image.Resampling.BOX)
    best: tuple[str, bytes] | None = None
    for kind in ("png", "jpeg"):
        buffer = io.BytesIO()
        image.save(buffer, kind, quality=85) if kind == "jpeg" else image.save(buffer, kind)
        if best is None or buffer.tell() < len(best[1]):
            best = kind, buffer.getvalue()
    assert best is not None
    return f"data:image/{best[0]};base64,{base64.b64encode(best[1]).decode()}"
