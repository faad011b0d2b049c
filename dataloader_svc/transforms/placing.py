"""Where a row's media go: its parts cut at markers and slots, and media put in their places.

Parts in, pieces out: text, control tokens and media in the order of the document. The rules are told in
`document.py`, which makes tokens of the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.base import MEDIA_KINDS, Part


@dataclass(frozen=True, slots=True)
class Medium:
    index: int


Piece = tuple[str | int | Medium, bool]
"""Text, control token or medium; and whether it is a target."""


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts parts at media markers and, where the source says so, at control words.

    markers   string and kind
    media_tokens   id of each kind's placeholder; -1 where there is none
    pattern   of the markers, a group each
    split     typed text at its control words
    """

    markers: tuple[tuple[str, int], ...]
    media_tokens: tuple[int, ...]
    pattern: re.Pattern[str]
    split: Callable[[str], Sequence[str | int]]

    @classmethod
    def of(
        cls,
        markers: tuple[tuple[str, int], ...],
        media_tokens: tuple[int, ...],
        split: Callable[[str], Sequence[str | int]] | None,
    ) -> Cutter:
        """`split` None: control words typed in the data stay text."""
        pattern = "|".join(f"({re.escape(marker)})" for marker, _ in markers)
        return cls(markers, media_tokens, re.compile(pattern or r"(?!)"), split or (lambda text: [text]))

    def cut(self, part: Part, exact: bool) -> list[str | int | Medium]:
        """Here a `Medium` holds the kind. A template may write a medium's own token.

        exact   media have slots: markers are text
        """
        if part.slot >= 0:
            return [Medium(part.slot)]
        if part.text is None:
            return [self._token(part.token)]
        if not part.typed:
            return [part.text]
        if exact:
            return self._typed(part.text)
        found: list[str | int | Medium] = []
        at = 0
        for match in self.pattern.finditer(part.text):
            found += self._typed(part.text[at : match.start()])
            assert match.lastindex is not None
            found.append(Medium(self.markers[match.lastindex - 1][1]))
            at = match.end()
        return found + self._typed(part.text[at:])

    def _typed(self, text: str) -> list[str | int | Medium]:
        if not text:
            return []
        return [piece if isinstance(piece, str) else self._token(piece) for piece in self.split(text)]

    def _token(self, token: int) -> int | Medium:
        media = self.media_tokens
        return Medium(media.index(token)) if token in media else token


def place_media(source: list[Part], cutter: Cutter, media: list[list[int]], exact: bool) -> list[Piece]:
    """`source` with media in place of their slots or markers, or in front of the first typed text."""
    pieces: list[Piece] = []
    markers = [0] * len(media)
    front = 0
    seen_typed = False
    for part in source:
        if part.typed and not seen_typed:
            front, seen_typed = len(pieces), True
        for piece in cutter.cut(part, exact):
            if isinstance(piece, Medium):
                kind = piece.index
                number, markers[kind] = markers[kind], markers[kind] + 1
                if number < len(media[kind]):
                    pieces.append((Medium(media[kind][number]), False))
            else:
                pieces.append((piece, part.target))
    unplaced: list[Piece] = []
    for kind, wanted in enumerate(map(len, media)):
        if markers[kind] == 0 and not exact:
            unplaced += [(Medium(index), False) for index in media[kind]]
        elif markers[kind] != wanted:
            name = MEDIA_KINDS[kind]
            places = "places that the chat template gives" if exact else "markers"
            raise BadSample(Reason.MARKER_MISMATCH, f"{markers[kind]} {name} {places} for {wanted} {name}s")
    pieces[front:front] = unplaced
    return _merged(pieces)


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring texts joined where both are targets or both are not.

    A model that is asked sees its prompt tokenized in one piece and makes its answer from there; so must the
    documents that it learns from be.
    """
    merged: list[Piece] = []
    for piece, target in pieces:
        if merged and isinstance(piece, str) and isinstance(merged[-1][0], str) and merged[-1][1] == target:
            merged[-1] = (merged[-1][0] + piece, target)
        else:
            merged.append((piece, target))
    return merged


def ends_with(pieces: list[Piece], token: int) -> bool:
    """Whether `token` is last, white space aside."""
    for piece, _ in reversed(pieces):
        if not (isinstance(piece, str) and piece.isspace()):
            return piece == token
    return False
