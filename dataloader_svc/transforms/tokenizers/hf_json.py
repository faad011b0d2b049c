"""tokenizers JSON files, read by `tokenizers` and, some hundred times faster, by `fastokens`.

Ids are those of `tokenizers` with `add_special_tokens=False` and `encode_special_tokens=True`. The document
that both libraries get is `_plain_document`: nothing cut, padded or drawn by chance, control words marked.

A text that does not start a document is encoded by the same document without what puts a space in front of
it: Metaspace's `prepend_scheme`, ByteLevel's `add_prefix_space`, the normalizer `Prepend`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tokenizers

from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.tokenizers.base import (
    AddedToken,
    Encoders,
    Flat,
    Prefix,
    TokenizerFile,
    flat,
    in_bars,
)
from dataloader_svc.transforms.tokenizers.settings import added_tokens

Document = Mapping[str, Any]

EMPTY: Mapping[str, int] = MappingProxyType({})


class TokenizersEncoder:
    """The reference."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._tokenizer = library
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: Sequence[str]) -> Flat:
        return flat([e.ids for e in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)])


class FastokensEncoder:
    """Buffers in, buffers out; the interpreter lock is released."""

    def __init__(self, document: str) -> None:
        import fastokens

        self._tokenizer = fastokens.Tokenizer.from_json_str(document)

    def encode(self, texts: Sequence[str]) -> Flat:
        texts = texts if isinstance(texts, list) else list(texts)
        ids, offsets = self._tokenizer.encode_batch_flat(texts, split_special_tokens=True)
        return np.frombuffer(ids, "<i4"), np.frombuffer(offsets, "<i8")


class _Words:
    def __init__(self, library: tokenizers.Tokenizer, added: Sequence[AddedToken]) -> None:
        self._library = library
        size: int = library.get_vocab_size(with_added_tokens=True)
        self.size = max(size, 1 + max((token.id for token in added), default=-1))

    def id_of(self, word: str) -> int | None:
        found: int | None = self._library.token_to_id(word)
        return found

    def word_of(self, token_id: int) -> str | None:
        word: str | None = self._library.id_to_token(token_id)
        return word

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._library.decode(ids, skip_special_tokens=False)
        return text


def checked(document: object, file: Path) -> Document:
    """The JSON of a tokenizers file. Raises ConfigError for anything else."""
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise ConfigError(f"tokenizer {file}: JSON, but no tokenizers file: it has no `model`")
    return document


def byte_level_document(
    vocab: Mapping[str, int],
    merges: Sequence[str],
    pattern: str | None,
    normalizer: str | None,
    *,
    add_prefix_space: bool,
) -> Document:
    """vocab.json and merges.txt as a tokenizers file.

    pattern            None: GPT-2's, which ByteLevel has built in
    add_prefix_space   goes with GPT-2's pattern alone
    """
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "add_prefix_space": False, "use_regex": False}
    if pattern is None:
        pre_tokenizer = {**byte_level, "add_prefix_space": add_prefix_space, "use_regex": True}
    else:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None if normalizer is None else {"type": normalizer},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def from_document(
    document: Document, file: Path, settings: Mapping[str, Any], special: Mapping[str, int] = EMPTY
) -> TokenizerFile:
    """A tokenizers file with the tokens that its folder's settings add, and those of `special`."""
    added = [
        *added_tokens(settings, file.parent, _ids(document).get),
        *(AddedToken(word, number, special=True) for word, number in special.items()),
    ]
    plain = _plain_document(document, added)
    text = _text(plain)  # dumped once: a real vocabulary is megabytes
    library = _load(text, file)
    tokens = tuple(_token(entry) for entry in plain["added_tokens"])
    for token in tokens:
        if library.token_to_id(token.word) != token.id:
            raise ConfigError(
                f"tokenizer {file}: added token {token.word!r} should have id {token.id}, but the vocabulary "
                f"puts it at {library.token_to_id(token.word)}"
            )
    prefix, unprefixed = _prefix(plain)
    first = TokenizersEncoder(library)
    inner_text = None if unprefixed is None else _text(unprefixed)
    inner = first if inner_text is None else TokenizersEncoder(_load(inner_text, file))

    def fast() -> Encoders:
        # Holds texts, not documents: parsed, a vocabulary takes many times the memory.
        start = FastokensEncoder(text)
        return Encoders(start, start if inner_text is None else FastokensEncoder(inner_text))

    return TokenizerFile(
        name=str(file),
        library="tokenizers",
        content=text.encode(),
        words=_Words(library, tokens),
        added=tokens,
        settings=settings,
        reference=Encoders(first, inner),
        fast=fast,
        prefix=prefix,
        around=_added_around(library),
    )


def _ids(document: Document) -> dict[str, int]:
    """Word -> id of the model and of the added tokens."""
    vocab = document["model"].get("vocab")
    ids: dict[str, int] = {}
    if isinstance(vocab, Mapping):
        ids.update(vocab)
    elif isinstance(vocab, list):  # Unigram: pairs of word and score
        ids.update({entry[0]: number for number, entry in enumerate(vocab) if isinstance(entry, list)})
    return {**ids, **{entry["content"]: int(entry["id"]) for entry in document.get("added_tokens") or ()}}


def _load(text: str, file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for what it can't parse
        raise ConfigError(f"tokenizer {file}: not a tokenizers file: {error}") from None


def _text(document: Document) -> str:
    return json.dumps(document, ensure_ascii=False)


def _token(entry: Mapping[str, Any]) -> AddedToken:
    return AddedToken(
        entry["content"],
        int(entry["id"]),
        entry["special"],
        bool(entry.get("lstrip")),
        bool(entry.get("rstrip")),
    )


def _plain_document(document: Document, added: Sequence[AddedToken]) -> dict[str, Any]:
    """What both libraries load: nothing cut, padded or drawn by chance, and control words marked special."""
    entries = {entry["content"]: dict(entry) for entry in document.get("added_tokens") or ()}
    for token in added:
        entry = entries.setdefault(
            token.word,
            {
                "id": token.id,
                "content": token.word,
                "single_word": False,
                "lstrip": token.lstrip,
                "rstrip": token.rstrip,
                "normalized": False,
            },
        )
        entry["special"] = entry.get("special") or token.special
    for entry in entries.values():
        entry["special"] = bool(entry.get("special") or in_bars(entry["content"]))
    # Dropout would make ids depend on a generator that nobody keys.
    model = {**document["model"], "dropout": None} if "dropout" in document["model"] else document["model"]
    tokens = sorted(entries.values(), key=lambda entry: int(entry["id"]))
    return {**document, "model": model, "added_tokens": tokens, "truncation": None, "padding": None}


def _prefix(document: dict[str, Any]) -> tuple[Prefix, dict[str, Any] | None]:
    """Where the document puts a space in front of a text, and the document without that."""
    schemes: set[Prefix] = set()

    def pre_tokenizer(node: dict[str, Any]) -> dict[str, Any]:
        kind = node.get("type")
        if kind == "Sequence":
            return {**node, "pretokenizers": [pre_tokenizer(part) for part in node["pretokenizers"]]}
        if kind == "ByteLevel" and node.get("add_prefix_space"):
            schemes.add("each")
            return {**node, "add_prefix_space": False}
        if kind == "Metaspace":
            # Files older than prepend_scheme say add_prefix_space, and mean `always`.
            scheme = node.get("prepend_scheme", "always" if node.get("add_prefix_space", True) else "never")
            if scheme != "never":
                schemes.add("first" if scheme == "first" else "each")
            rest = {key: value for key, value in node.items() if key != "add_prefix_space"}
            return {**rest, "prepend_scheme": "never"}
        return node

    def normalizer(node: dict[str, Any]) -> dict[str, Any] | None:
        if node.get("type") == "Sequence":
            parts = [made for part in node["normalizers"] if (made := normalizer(part)) is not None]
            return {**node, "normalizers": parts}
        if node.get("type") == "Prepend":
            schemes.add("each")
            return None
        return node

    changed = {
        "pre_tokenizer": pre_tokenizer(document["pre_tokenizer"]) if document.get("pre_tokenizer") else None,
        "normalizer": normalizer(document["normalizer"]) if document.get("normalizer") else None,
    }
    if not schemes:
        return "never", None
    return "each" if "each" in schemes else "first", {**document, **changed}


def _added_around(library: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the post-processor puts before and after a text."""
    inner = library.encode("a", add_special_tokens=False).ids
    outer = library.encode("a", add_special_tokens=True).ids
    for start in range(len(outer) - len(inner) + 1):
        if outer[start : start + len(inner)] == inner:
            return tuple(outer[:start]), tuple(outer[start + len(inner) :])
    return (), ()
