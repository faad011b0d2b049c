"""Text to token ids, a block at a time, and the tokenizer's own words: end, start and control tokens.

What is typed in data is text. A **control token** is an added token that is special, or whose word stands
in bars (`<|User|>`, `<｜User｜>`: some vocabularies use such words for turns without calling them special);
its id comes from a template or from us, never from data. Other added tokens (runs of spaces, `<think>`) are
ordinary vocabulary and stay so. Ids are those of the `tokenizers` library with `add_special_tokens=False` and
`encode_special_tokens=True`; `fastokens` gives them some hundred times faster and is used where it agrees.

Knows nothing of rows, sources or documents: `document.py` puts the ids of a block together.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest
from dataloader_svc.transforms.hard_strings import HARD_STRINGS

log = logging.getLogger(__name__)

Backend = Literal["auto", "fastokens", "tokenizers"]
Flat = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Ids of all texts one after another, and n+1 offsets into them."""

_IN_BARS = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)

# Document ends by which vocabularies are known, for a tokenizer.json that comes without its
# tokenizer_config.json: GPT-2 and Qwen, Llama 2, Llama 3, DeepSeek, Gemma, and the BERT family.
_KNOWN_EOS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<eos>", "[SEP]")
_KNOWN_BOS = ("<s>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<bos>", "[CLS]", "<|endoftext|>")


class _Encoder(Protocol):
    def encode(self, texts: Sequence[str]) -> Flat: ...


class _Tokenizers:
    """The reference."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._tokenizer = library
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: Sequence[str]) -> Flat:
        lists = [e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(ids) for ids in lists], out=offsets[1:])
        flat = np.fromiter((i for ids in lists for i in ids), np.int32, count=int(offsets[-1]))
        return flat, offsets


class _Fastokens:
    """Buffers in, buffers out; the interpreter lock is released."""

    def __init__(self, text: str) -> None:
        import fastokens

        self._tokenizer = fastokens.Tokenizer.from_json_str(text)

    def encode(self, texts: Sequence[str]) -> Flat:
        texts = texts if isinstance(texts, list) else list(texts)
        ids, offsets = self._tokenizer.encode_batch_flat(texts, split_special_tokens=True)
        return np.frombuffer(ids, "<i4"), np.frombuffer(offsets, "<i8")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer, loaded. Make one with `load`.

    control        word -> id of each control token
    backend_used   the library that encodes
    digest         of tokenizer.json and the library: what ids depend on
    settings       tokenizer_config.json, or {}
    """

    name: str
    backend_used: str
    digest: str
    control: Mapping[str, int]
    settings: Mapping[str, Any]
    _encoder: _Encoder
    _library: tokenizers.Tokenizer
    _added: tuple[Mapping[str, Any], ...]
    _postprocessed: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def load(cls, path: Path | str, backend: Backend = "auto") -> Self:
        """From a tokenizers JSON file, or a folder that holds `tokenizer.json`.

        Raises ConfigError where there is no such file, it is no tokenizer, or `backend` can't serve it.
        """
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        document, raw = _read_document(file)
        plain = _plain_document(document)
        text = json.dumps(plain, ensure_ascii=False)
        try:
            library = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for what it can't parse
            raise ConfigError(f"tokenizer {file}: not a tokenizers file: {error}") from None
        added = tuple(plain["added_tokens"])
        control = {token["content"]: int(token["id"]) for token in added if token["special"]}
        used, encoder = _choose(text, _Tokenizers(library), backend, file, control)
        digest = hashlib.blake2b(raw + used.encode(), digest_size=16).hexdigest()
        settings = _read_settings(file.parent / "tokenizer_config.json")
        around = _added_around(library)
        return cls(str(file), used, digest, control, settings, encoder, library, added, around)

    def encode_batch(self, texts: Sequence[str]) -> Flat:
        """Ids int32 (total,) and offsets int64 (n+1,): text i is `ids[offsets[i]:offsets[i+1]]`.

        One call of the library however many texts. Thread-safe. Arrays may be read-only. Raises
        UnicodeEncodeError or TypeError where a text holds half a surrogate pair.
        """
        if not len(texts):
            return np.empty(0, np.int32), np.zeros(1, np.int64)
        return self._encoder.encode(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens spelled out."""
        text: str = self._library.decode([int(i) for i in ids], skip_special_tokens=False)
        return text

    def token_id(self, token: str | int) -> int:
        """The id of a vocabulary entry, or `token` where it is an id. Raises ConfigError for neither."""
        size = self.vocab_size
        if isinstance(token, int):
            if not 0 <= token < size:
                raise ConfigError(
                    f"token id {token} is not in the vocabulary of {self.name}: 0 to {size - 1}"
                )
            return token
        found: int | None = self._library.token_to_id(token)
        if found is None:
            hint = nearest(token, [entry["content"] for entry in self._added])
            raise ConfigError(f"token {token!r} is not in the vocabulary of {self.name}{hint}")
        return found

    def token(self, token_id: int) -> str | None:
        """The vocabulary entry of an id."""
        word: str | None = self._library.id_to_token(token_id)
        return word

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        size: int = self._library.get_vocab_size(with_added_tokens=True)
        return max(size, 1 + max((int(entry["id"]) for entry in self._added), default=-1))

    def eos_id(self, token: str | int | None = None) -> int:
        """The document end: `token` where given, else what the tokenizer's files say.

        In this order: tokenizer_config.json's `eos_token`, what the post-processor appends, the only one of
        the well-known ends that the vocabulary has. Raises ConfigError where that decides nothing.
        """
        return self._edge(token, "eos", self._postprocessed[1], _KNOWN_EOS)

    def bos_id(self, token: str | bool | int) -> int | None:
        """The document start: None for False, the tokenizer's own for True, else `token`."""
        if token is False:
            return None
        return self._edge(None if token is True else token, "bos", self._postprocessed[0], _KNOWN_BOS)

    def _edge(
        self, token: str | int | None, name: str, postprocessed: tuple[int, ...], known: tuple[str, ...]
    ) -> int:
        if token is not None:
            return self.token_id(token)
        named = self.setting_token(f"{name}_token")
        if named is not None:
            return self.token_id(named)
        if len(postprocessed) == 1:
            return postprocessed[0]
        there = [word for word in known if word in self.control]
        if len(there) == 1:
            return self.control[there[0]]
        found = f"it has {', '.join(map(repr, there))}" if there else "none is named"
        raise ConfigError(
            f"tokenizer {self.name} doesn't say which token is its {name}: {found}; set `{name}:` to a "
            "vocabulary entry or an id"
        )

    def setting_token(self, name: str) -> str | None:
        """A token that tokenizer_config.json names (`eos_token`, ...), as text."""
        value = self.settings.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        return value if isinstance(value, str) and value else None

    def split_control(self, text: str) -> list[str | int]:
        """Trusted `text` (a template's) cut at its control words: text as `str`, control tokens as ids.

        The spaces beside a word go with it where the token says so (`lstrip`, `rstrip`).
        """
        parts: list[str | int] = []
        at = 0
        for match in self._control_pattern.finditer(text):
            if match.start() > at:
                parts.append(text[at : match.start()])
            parts.append(self.control[match[0].strip() if match[0] not in self.control else match[0]])
            at = match.end()
        if at < len(text):
            parts.append(text[at:])
        return parts

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        entries = [entry for entry in self._added if entry["special"]]
        # Longest first: an alternation takes the first that fits.
        entries.sort(key=lambda entry: -len(entry["content"]))
        words = [
            (r"\s*" if entry.get("lstrip") else "")
            + re.escape(entry["content"])
            + (r"\s*" if entry.get("rstrip") else "")
            for entry in entries
        ]
        return re.compile("|".join(words) if words else r"(?!)")


def _read_document(file: Path) -> tuple[dict[str, Any], bytes]:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"tokenizer {file}: {error.strerror}; expected a tokenizers JSON file or a "
            "folder with tokenizer.json"
        ) from None
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise ConfigError(f"tokenizer {file}: not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise ConfigError(f"tokenizer {file}: JSON, but no tokenizers file: it has no `model`")
    return document, raw


def _plain_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """What both libraries load: nothing cut, padded or drawn by chance, and control words marked special."""
    added = [
        {**token, "special": bool(token.get("special") or _IN_BARS.fullmatch(token["content"]))}
        for token in document.get("added_tokens") or ()
    ]
    # Dropout would make ids depend on a generator that nobody keys.
    model = {**document["model"], "dropout": None} if "dropout" in document["model"] else document["model"]
    return {**document, "model": model, "added_tokens": added, "truncation": None, "padding": None}


def _read_settings(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        settings = json.loads(file.read_bytes())
    except ValueError as error:
        raise ConfigError(f"tokenizer settings {file}: not JSON: {error}") from None
    return settings if isinstance(settings, dict) else {}


def _added_around(library: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the post-processor puts before and after a text."""
    inner = library.encode("a", add_special_tokens=False).ids
    outer = library.encode("a", add_special_tokens=True).ids
    for start in range(len(outer) - len(inner) + 1):
        if outer[start : start + len(inner)] == inner:
            return tuple(outer[:start]), tuple(outer[start + len(inner) :])
    return (), ()


def _choose(
    text: str, reference: _Encoder, backend: Backend, file: Path, control: Mapping[str, int]
) -> tuple[str, _Encoder]:
    """The back end to use. The one log line of a fall-back says why."""
    if backend == "tokenizers":
        return "tokenizers", reference
    try:
        fast = _Fastokens(text)
        problem = disagreement(fast, reference, [*HARD_STRINGS, *_control_strings(control)])
    except Exception as error:  # whatever keeps it from loading or encoding: the reference serves
        problem = f"it can't load it: {type(error).__name__}: {error}"
    if problem is None:
        return "fastokens", fast
    if backend == "fastokens":
        raise ConfigError(
            f"tokenizer {file}: fastokens can't be used: {problem}; set tokenizer_backend: auto or tokenizers"
        )
    log.warning("tokenizer %s: using tokenizers, not fastokens (some 100 times slower): %s", file, problem)
    return "tokenizers", reference


def _control_strings(control: Mapping[str, int]) -> list[str]:
    """Control words as someone might type them, of both ends of the list: some have over a thousand."""
    words = list(control)
    return [f"a {word} b{word}\n{word}" for word in (*words[:16], *words[-16:])]


def disagreement(encoder: _Encoder, reference: _Encoder, texts: Sequence[str]) -> str | None:
    """None where both give the same ids for each text; else the first difference, in words."""
    found, expected = encoder.encode(texts), reference.encode(texts)
    for i, text in enumerate(texts):
        ours, theirs = (flat[0][flat[1][i] : flat[1][i + 1]].tolist() for flat in (found, expected))
        if ours != theirs:
            pairs = zip(ours, theirs, strict=False)
            at = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
            return (
                f"its ids differ for {text[:40]!r}: {ours[at : at + 4]} where tokenizers has "
                f"{theirs[at : at + 4]} (token {at} of {len(theirs)})"
            )
    return None
