"""SentencePiece models (`*.model`), read by the package `sentencepiece`.

CONTROL pieces never come from text. USER_DEFINED ones do: those that the folder's settings call special, or
that stand in bars, are made CONTROL before the library loads the model, so that what is typed stays text.
Tokens that the settings add behind the model's own pieces are appended to it in the same way.

The space in front (`add_dummy_prefix`): SentencePiece itself, and with it Mistral's and Hugging Face's older
code, puts one at every piece of text; `legacy: false` in tokenizer_config.json means the start of a document
alone, `add_prefix_space: false` means never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.tokenizers.base import (
    AddedToken,
    Encoders,
    Flat,
    Prefix,
    TokenizerFile,
    flat,
    in_bars,
    missing_library,
)
from dataloader_svc.transforms.tokenizers.settings import added_tokens

_THREADS = 2
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
"""Types of pieces in sentencepiece_model.proto."""


class _Encoder:
    def __init__(self, library: Any) -> None:
        self._library = library

    def encode(self, texts: Sequence[str]) -> Flat:
        return flat(self._library.encode(list(texts), out_type=int, num_threads=_THREADS))


class _Words:
    def __init__(self, library: Any, control: Mapping[str, int]) -> None:
        self._library = library
        self._control = {number: word for word, number in control.items()}
        self.size: int = library.get_piece_size()

    def id_of(self, word: str) -> int | None:
        found: int = self._library.piece_to_id(word)
        return found if self._library.id_to_piece(found) == word else None

    def word_of(self, token_id: int) -> str | None:
        word: str | None = self._library.id_to_piece(token_id) if 0 <= token_id < self.size else None
        return word

    def decode(self, ids: Sequence[int]) -> str:
        out = []
        for control, run in groupby(ids, self._control.__contains__):
            if control:
                out += [self._control[number] for number in run]
            else:
                out.append(self._library.decode(list(run)))
        return "".join(out)


def from_sentencepiece(raw: bytes, file: Path, settings: Mapping[str, Any]) -> TokenizerFile:
    """A model with the tokens of its folder's settings. Raises ConfigError for what is none."""
    try:
        import sentencepiece
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise missing_library("sentencepiece", str(file), "sentencepiece", error) from None
    model: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(raw)
        if not model.pieces:
            raise DecodeError("it has no pieces")
    except DecodeError as error:
        raise ConfigError(f"tokenizer {file}: not a SentencePiece model: {error}") from None
    _add(model, file, settings)
    special = [(number, piece) for number, piece in enumerate(model.pieces) if piece.type == _CONTROL]
    unknown = [(number, piece) for number, piece in enumerate(model.pieces) if piece.type == _UNKNOWN]
    added = tuple(AddedToken(piece.piece, number, special=True) for number, piece in [*unknown, *special])
    prefix = _prefix(model, settings)
    first = _library(sentencepiece, model, file, prefixed=prefix != "never")
    inner = first if prefix == "never" else _library(sentencepiece, model, file, prefixed=False)
    encoder = _Encoder(first)
    edges = [(number,) if number >= 0 else () for number in (first.bos_id(), first.eos_id())]
    return TokenizerFile(
        name=str(file),
        library="sentencepiece",
        content=model.SerializeToString(deterministic=True) + prefix.encode(),
        words=_Words(first, {token.word: token.id for token in added}),
        added=added,
        settings=settings,
        reference=Encoders(encoder, encoder if inner is first else _Encoder(inner)),
        fast=None,
        prefix=prefix,
        around=(edges[0], edges[1]),
    )


def _library(package: Any, model: Any, file: Path, *, prefixed: bool) -> Any:
    model.normalizer_spec.add_dummy_prefix = prefixed
    try:
        return package.SentencePieceProcessor(model_proto=model.SerializeToString())
    except RuntimeError as error:
        raise ConfigError(f"tokenizer {file}: sentencepiece can't use it: {error}") from None


def _prefix(model: Any, settings: Mapping[str, Any]) -> Prefix:
    if not model.normalizer_spec.add_dummy_prefix or settings.get("add_prefix_space") is False:
        return "never"
    return "first" if settings.get("legacy") is False else "each"


def _add(model: Any, file: Path, settings: Mapping[str, Any]) -> None:
    """Give the model the settings' tokens, and take from text the control tokens that it would match."""
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    added = {token.id: token for token in added_tokens(settings, file.parent, ids.get)}
    for number, token in sorted(added.items()):
        if number < len(model.pieces):
            found = model.pieces[number].piece
            if found != token.word:
                raise ConfigError(
                    f"tokenizer {file}: the settings call id {number} {token.word!r}, the model {found!r}"
                )
            if token.special and model.pieces[number].type != _UNKNOWN:
                model.pieces[number].type = _CONTROL
            continue
        while len(model.pieces) < number:
            model.pieces.add(piece=f"<unused {len(model.pieces)}>", score=0.0, type=_UNUSED)
        model.pieces.add(piece=token.word, score=0.0, type=_CONTROL if token.special else _USER_DEFINED)
    for piece in model.pieces:
        if piece.type == _USER_DEFINED and in_bars(piece.piece):
            piece.type = _CONTROL
