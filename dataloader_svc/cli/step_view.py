"""One step as a person looks at it: sequences, their documents, what they cost, which source has which share.

Pure. Made from a plan and, for `preview`, from what stands in its pieces (`contents.py`). `preview_table.py`
and `explain_view.py` word it, `preview_page.py` draws it.
"""

from __future__ import annotations

import colorsys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataloader_balancers import segment_sum
from dataloader_svc.cli.contents import Clip, Content, Medium, PieceKey
from dataloader_svc.planner.place import Strategy
from dataloader_svc.planner.plan import Plan
from dataloader_svc.sample import RowRef, SampleId

_PALETTE = (
    *("#3b76c4", "#d9772b", "#2f9467", "#b3478b", "#7b62c9", "#a88a1c"),
    *("#2b8fa3", "#c64b43", "#667487", "#6f8f2f", "#96694a", "#4f5bbd"),
)


@dataclass(frozen=True, slots=True)
class PieceView:
    """A document or a part of one. `row` and `content` are None where nobody looked them up.

    patches, frames   for the encoders: of its pictures and videos, and mel frames of its sound
    """

    key: PieceKey
    patches: int = 0
    frames: int = 0
    row: RowRef | None = None
    content: Content | None = None

    @property
    def sample(self) -> SampleId:
        """The sample that it is a piece of."""
        return SampleId(*self.key[:3])

    @property
    def name(self) -> str:
        """`web/0/17`, and which tokens where it may be a part of the document: `web/0/17 from 8192`."""
        return f"{self.sample}" + (f" from {self.key.start}" if self.key.start else "")


@dataclass(frozen=True, slots=True)
class SequenceView:
    """A packed sequence; `number` counts from 0 in the plan's order. Costs in the configuration's unit."""

    number: int
    pieces: tuple[PieceView, ...]
    llm_cost: float
    encoder_cost: float

    @property
    def tokens(self) -> int:
        """Without padding."""
        return sum(piece.key.length for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What a source has of a step, and what it is to have (`target`, a share) by the mixture's weights."""

    name: str
    target: float
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class StepView:
    """A step. `sequences` are all of it; those with the numbers `shown` have contents.

    unit     what `SourceShare.target` is a share of: tokens or samples
    skipped  reason -> samples that were passed over on the way to this step since the one before
    """

    job: str
    step: int
    digest: str
    sequence_length: int
    unit: str
    sequences: tuple[SequenceView, ...]
    shown: tuple[int, ...]
    sources: tuple[SourceShare, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Of all sequences, without padding."""
        return sum(sequence.tokens for sequence in self.sequences)

    @property
    def capacity(self) -> int:
        """Tokens that would fit."""
        return len(self.sequences) * self.sequence_length

    @property
    def documents(self) -> int:
        """Pieces of all sequences."""
        return sum(len(sequence.pieces) for sequence in self.sequences)

    def relative_cost(self, sequence: SequenceView) -> tuple[float, float]:
        """(llm, encoder) cost of a sequence over the mean of all; 0 where none costs anything."""
        llm = sum(other.llm_cost for other in self.sequences) / len(self.sequences)
        encoder = sum(other.encoder_cost for other in self.sequences) / len(self.sequences)
        return (
            sequence.llm_cost / llm if llm else 0.0,
            sequence.encoder_cost / encoder if encoder else 0.0,
        )

    @property
    def spread(self) -> float:
        """Dearest sequence over the mean, by llm cost."""
        return max((self.relative_cost(sequence)[0] for sequence in self.sequences), default=0.0)

    def share(self, source: SourceShare) -> float:
        """What the source has of the step, in `unit`."""
        whole = self.tokens if self.unit == "tokens" else sum(other.samples for other in self.sources)
        part = source.tokens if self.unit == "tokens" else source.samples
        return part / whole if whole else 0.0

    def shown_sequences(self) -> list[SequenceView]:
        """Those with contents."""
        return [self.sequences[number] for number in self.shown]

    def shown_contents(self) -> list[Content]:
        """Of all pieces that have any."""
        pieces = [piece for sequence in self.shown_sequences() for piece in sequence.pieces]
        return [piece.content for piece in pieces if piece.content is not None]


def sequences_of(
    plan: Plan,
    strategy: Strategy,
    row: Callable[[SampleId], RowRef | None],
    contents: Mapping[PieceKey, Content] | None = None,
) -> tuple[SequenceView, ...]:
    """All sequences of a plan. `row` says where a sample lies; `contents` what stands in some pieces."""
    pieces, offsets = plan.pieces, plan.sequence_offsets
    llm = segment_sum(strategy.llm.of_documents(pieces.length), offsets)
    encoder = segment_sum(strategy.encoder.of_pieces(pieces), offsets)
    columns = (pieces.epoch, pieces.position, pieces.start, pieces.length)
    names = [plan.sources[number] for number in pieces.source.tolist()]
    keys = map(PieceKey, names, *(column.tolist() for column in columns))
    views = [
        PieceView(key, patches, frames, row(SampleId(*key[:3])), (contents or {}).get(key))
        for key, patches, frames in zip(keys, pieces.patches.tolist(), pieces.frames.tolist(), strict=True)
    ]
    return tuple(
        SequenceView(number, tuple(views[low:high]), float(llm[number]), float(encoder[number]))
        for number, (low, high) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    )


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each source, `#rrggbb`, by its place among them."""
    result = {}
    for number, name in enumerate(names):
        # Beyond the palette: hues a golden angle apart.
        red, green, blue = colorsys.hls_to_rgb(number * 137.508 % 360 / 360, 0.45, 0.45)
        computed = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
        result[name] = _PALETTE[number] if number < len(_PALETTE) else computed
    return result


def spread_over(count: int, total: int) -> tuple[int, ...]:
    """`count` of `total` sequences, evenly spread: packers sort, so neighbours look alike."""
    if count >= total:
        return tuple(range(total))
    return tuple(round(i * (total - 1) / max(1, count - 1)) for i in range(count))


def shares(
    sequences: Sequence[SequenceView], names: Sequence[str], targets: Sequence[float]
) -> tuple[SourceShare, ...]:
    """Counted over a step's pieces. A sample counts in the step that has its first token."""
    tokens: Counter[str] = Counter()
    samples: Counter[str] = Counter()
    for sequence in sequences:
        for piece in sequence.pieces:
            tokens[piece.key.source] += piece.key.length
            samples[piece.key.source] += piece.key.start == 0
    return tuple(
        SourceShare(name, target, tokens[name], samples[name])
        for name, target in zip(names, targets, strict=True)
    )


def step_json(view: StepView) -> dict[str, Any]:
    """For `--json`: all sequences, and the text of the shown ones."""
    return {
        "job": view.job,
        "step": view.step,
        "digest": view.digest,
        "sequence_length": view.sequence_length,
        "tokens": view.tokens,
        "fill": view.tokens / view.capacity if view.capacity else 0.0,
        "documents": view.documents,
        "sources": {
            source.name: {
                "target": source.target,
                "share": view.share(source),
                "tokens": source.tokens,
                "samples": source.samples,
            }
            for source in view.sources
        },
        "skipped": dict(view.skipped),
        "sequences": [sequence_json(sequence, view.sequence_length) for sequence in view.sequences],
    }


def sequence_json(sequence: SequenceView, sequence_length: int) -> dict[str, Any]:
    """A sequence with its documents."""
    return {
        "sequence": sequence.number,
        "tokens": sequence.tokens,
        "fill": sequence.tokens / sequence_length,
        "cost": {"llm": sequence.llm_cost, "encoder": sequence.encoder_cost},
        "documents": [piece_json(piece) for piece in sequence.pieces],
    }


def piece_json(piece: PieceView) -> dict[str, Any]:
    """A piece; `row`, `targets`, `text` and `media` where they are known."""
    source, epoch, position, start, length = piece.key
    values: dict[str, Any] = {
        "source": source,
        "epoch": epoch,
        "position": position,
        "start": start,
        "tokens": length,
        "patches": piece.patches,
        "mel_frames": piece.frames,
    }
    if piece.row is not None:
        values |= {"shard": piece.row.shard, "row": piece.row.row}
    if piece.content is not None:
        values |= {
            "targets": piece.content.targets,
            "text": piece.content.text(),
            "media": [_medium_json(medium) for medium in piece.content.media],
        }
    return values


def _medium_json(medium: Medium | Clip) -> dict[str, Any]:
    if isinstance(medium, Clip):
        return {
            "kind": medium.kind,
            "mel_frames": len(medium.features),
            "seconds": medium.seconds,
            "tokens": medium.tokens,
        }
    return {
        "kind": medium.kind,
        "frames": medium.grid[0],
        "width": medium.width,
        "height": medium.height,
        "tokens": medium.tokens,
    }
