"""Files of byte-pair ranks: `.tiktoken` (also Llama 3's `tokenizer.model`) and Mistral's `tekken.json`.

The reference is the package `tiktoken`; `fastokens` reads the same ranks. A tekken file says everything; a
`.tiktoken` holds nothing but ranks, so the pattern that cuts text and the control tokens come from
`tokenizer_options`, or from the preset whose name and size the file has. A guess would give ids that look
right and are not, so anything else is an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataloader_svc.config.schema import TokenizerOptions
from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.tokenizers.base import (
    AddedToken,
    Encoders,
    Flat,
    TokenizerFile,
    flat,
    missing_library,
)
from dataloader_svc.transforms.tokenizers.presets import PRESETS, Preset, preset_named

if TYPE_CHECKING:
    import tiktoken

_THREADS = 2

# Of tekken files before v7, which name none; the rest of the 1,000 are fillers.
_OLD_TEKKEN_WORDS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]",
    "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Ranks:
    """`shift`: id of rank 0; special ids are not shifted."""

    file: Path
    ranks: Mapping[bytes, int]
    pattern: str
    special: Mapping[str, int]
    shift: int = 0


class _TiktokenEncoder:
    def __init__(self, library: tiktoken.Encoding, shift: int) -> None:
        self._library = library
        self._shift = shift

    def encode(self, texts: Sequence[str]) -> Flat:
        for text in texts:
            if not text.isascii():
                text.encode()  # the library would replace half a surrogate pair without a word
        lists = self._library.encode_ordinary_batch(list(texts), num_threads=_THREADS)
        ids, offsets = flat(lists)
        return ids + np.int32(self._shift), offsets


class _FastokensEncoder:
    def __init__(self, made: _Ranks) -> None:
        import fastokens

        with tempfile.NamedTemporaryFile("wb", suffix=".tiktoken") as file:  # it reads nothing but files
            for token, rank in made.ranks.items():
                file.write(b"%s %d\n" % (base64.b64encode(token), rank))
            file.flush()
            special = {} if made.shift else dict(made.special)
            self._tokenizer = fastokens.Tokenizer.from_tiktoken(
                file.name, pattern=made.pattern, special_tokens=special
            )
        self._shift = made.shift

    def encode(self, texts: Sequence[str]) -> Flat:
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts), split_special_tokens=True)
        found = np.frombuffer(ids, "<i4")
        return (found + np.int32(self._shift) if self._shift else found), np.frombuffer(offsets, "<i8")


class _Words:
    def __init__(self, made: _Ranks, library: tiktoken.Encoding) -> None:
        self._made = made
        self._library = library
        self._special = {number: word for word, number in made.special.items()}
        largest = max(made.ranks.values(), default=-1) + made.shift
        self.size = 1 + max(largest, *self._special)

    def id_of(self, word: str) -> int | None:
        if word in self._made.special:
            return self._made.special[word]
        rank = self._made.ranks.get(word.encode(errors="replace"))
        return None if rank is None else rank + self._made.shift

    def word_of(self, token_id: int) -> str | None:
        if token_id in self._special:
            return self._special[token_id]
        try:
            return self._library.decode_single_token_bytes(token_id - self._made.shift).decode(
                errors="replace"
            )
        except (KeyError, OverflowError):
            return None

    def decode(self, ids: Sequence[int]) -> str:
        out = []
        for special, run in groupby(ids, self._special.__contains__):
            if special:
                out += [self._special[number] for number in run]
            else:
                out.append(self._library.decode([number - self._made.shift for number in run]))
        return "".join(out)


def is_ranks(raw: bytes) -> bool:
    """Whether the first line is a `.tiktoken` file's."""
    first, _, rank = raw.split(b"\n", 1)[0].strip().partition(b" ")
    return rank.isdigit() and _unbase64(first) is not None


def from_tiktoken(
    raw: bytes, file: Path, settings: Mapping[str, Any], options: TokenizerOptions
) -> TokenizerFile:
    """A `.tiktoken` file. Raises ConfigError where it isn't clear how to cut text for it."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        if not line.strip():
            continue
        word, _, rank = line.strip().partition(b" ")
        token = _unbase64(word)
        if token is None or not rank.isdigit():
            raise ConfigError(f"tokenizer {file}, line {number}: expected `base64 rank`, found {line[:40]!r}")
        ranks[token] = int(rank)
    preset = _preset(file, len(ranks), options)
    pattern = options.pattern or (preset.pattern if preset else None)
    if pattern is None:
        raise ConfigError(
            f"tokenizer {file}: {len(ranks)} byte-pair ranks, and nothing says how text is cut for them; set "
            f"tokenizer_options: {{preset: {' | '.join(PRESETS)}}}, or {{pattern: ..., special_tokens: ...}}"
        )
    special = options.numbered(1 + max(ranks.values(), default=-1))
    if special is None:
        special = dict(preset.special_tokens) if preset else {}
    return _made(_Ranks(file, ranks, pattern, special), raw, settings, (), ())


def _preset(file: Path, size: int, options: TokenizerOptions) -> Preset | None:
    if options.preset is not None:
        preset = preset_named(options.preset)
        if preset.ranks != size and options.special_tokens is None:
            raise ConfigError(
                f"tokenizer {file}: has {size} ranks, preset {options.preset} has {preset.ranks}: its "
                "control tokens would have wrong ids; name them by tokenizer_options.special_tokens"
            )
        return preset
    known = (p for p in PRESETS.values() if file.stem in p.names and p.ranks == size)
    return None if options.pattern is not None else next(known, None)


def from_tekken(document: Mapping[str, Any], raw: bytes, file: Path) -> TokenizerFile:
    """A `tekken.json`: ids are ranks behind the special tokens."""
    try:
        config = document["config"]
        num_special = int(config["default_num_special_tokens"])
        inner = int(config["default_vocab_size"]) - num_special
        ranks = {base64.b64decode(entry["token_bytes"]): int(entry["rank"]) for entry in document["vocab"]}
        words = {
            int(entry["rank"]): str(entry["token_str"]) for entry in document.get("special_tokens") or ()
        } or dict(enumerate(_OLD_TEKKEN_WORDS))
        pattern = str(config["pattern"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"tokenizer {file}: not a tekken file: {type(error).__name__}: {error}") from None
    special = {words.get(rank, f"<SPECIAL_{rank}>"): rank for rank in range(num_special)}
    kept = {token: rank for token, rank in ranks.items() if rank < inner}
    edges = [tuple(special[word] for word in (name,) if word in special) for name in ("<s>", "</s>")]
    return _made(_Ranks(file, kept, pattern, special, num_special), raw, {}, *edges)


def _made(
    made: _Ranks, raw: bytes, settings: Mapping[str, Any], start: tuple[int, ...], end: tuple[int, ...]
) -> TokenizerFile:
    try:
        import tiktoken
    except ImportError as error:
        raise missing_library("tiktoken", str(made.file), "tiktoken", error) from None
    special = {} if made.shift else dict(made.special)
    try:
        library = tiktoken.Encoding(
            str(made.file), pat_str=made.pattern, mergeable_ranks=dict(made.ranks), special_tokens=special
        )
    except Exception as error:  # a pattern that is no regex: the library raises what Rust gave it
        raise ConfigError(f"tokenizer {made.file}: tiktoken can't use it: {error}") from None
    encoder = _TiktokenEncoder(library, made.shift)

    def fast() -> Encoders:
        fast_encoder = _FastokensEncoder(made)
        return Encoders(fast_encoder, fast_encoder)

    return TokenizerFile(
        name=str(made.file),
        library="tiktoken",
        content=b"\n".join([raw, made.pattern.encode(), json.dumps(sorted(made.special.items())).encode()]),
        words=_Words(made, library),
        added=tuple(AddedToken(word, number, special=True) for word, number in made.special.items()),
        settings=settings,
        reference=Encoders(encoder, encoder),
        fast=fast,
        around=(start, end),
    )


def _unbase64(word: bytes) -> bytes | None:
    try:
        return base64.b64decode(word, validate=True)
    except binascii.Error:
        return None
