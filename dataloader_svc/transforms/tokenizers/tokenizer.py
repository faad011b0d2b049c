"""Text to token ids, a block at a time, and the tokenizer's own words: end, start and control tokens.

What is typed in data is text. A **control token** is an added token that is special, or whose word stands in
bars (`<|User|>`, `<｜User｜>`); its id comes from a template or from us, never from data, unless a source
says `control_words: true`. Other added tokens (runs of spaces, `<think>`) are ordinary vocabulary.

Knows nothing of rows, sources or documents: `document.py` puts the ids of a block together.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config.schema import Config, TokenizerBackend, TokenizerOptions
from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest
from dataloader_svc.transforms.tokenizers.base import AddedToken, Encoders, Flat, Prefix, Words
from dataloader_svc.transforms.tokenizers.choose import choose, disagreement
from dataloader_svc.transforms.tokenizers.load import load_file
from dataloader_svc.transforms.tokenizers.settings import setting_word

# Document ends by which vocabularies are known, for a file that comes without its settings: GPT-2 and Qwen,
# Llama 2, Llama 3, DeepSeek, Gemma, and the BERT family.
_KNOWN_EOS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<eos>", "[SEP]")
_KNOWN_BOS = ("<s>", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<bos>", "[CLS]", "<|endoftext|>")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer, loaded. Make one with `load`, or `of` a configuration.

    control        word -> id of each control token
    library        the reference: the library that defines what the file's ids are
    backend_used   the library that encodes: the reference, or fastokens
    why            that one, for a person
    digest         of the file and the library: what ids depend on
    settings       tokenizer_config.json and its neighbours, or {}
    prefix         where the reference puts a space in front of a text that has none
    """

    name: str
    library: str
    backend_used: str
    why: str
    digest: str
    control: Mapping[str, int]
    settings: Mapping[str, Any]
    prefix: Prefix
    reference: Encoders
    _encoders: Encoders
    _words: Words
    _added: tuple[AddedToken, ...]
    _around: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def load(
        cls,
        path: Path | str,
        backend: TokenizerBackend = "auto",
        options: TokenizerOptions | None = None,
    ) -> Self:
        """From a tokenizers JSON, SentencePiece, tiktoken or tekken file, or a folder that holds one.

        Raises ConfigError where there is no such file, it is no tokenizer, or `backend` can't serve it.
        """
        file = load_file(Path(path), options or TokenizerOptions())
        used, encoders, why = choose(file, backend)
        digest = hashlib.blake2b(file.content + used.encode(), digest_size=16).hexdigest()
        return cls(
            name=file.name,
            library=file.library,
            backend_used=used,
            why=why,
            digest=digest,
            control=file.control,
            settings=file.settings,
            prefix=file.prefix,
            reference=file.reference,
            _encoders=encoders,
            _words=file.words,
            _added=file.added,
            _around=file.around,
        )

    @classmethod
    def of(cls, config: Config, base_dir: Path) -> Self:
        """The tokenizer of a job."""
        return cls.load(base_dir / config.tokenizer, config.tokenizer_backend, config.tokenizer_options)

    @property
    def is_reference(self) -> bool:
        """Whether the library that encodes is the one that defines the ids."""
        return self.backend_used == self.library

    def encode_batch(self, texts: Sequence[str], inner: NDArray[np.bool_] | None = None) -> Flat:
        """Ids int32 (total,) and offsets int64 (n+1,): text i is `ids[offsets[i]:offsets[i+1]]`.

        One call of the library however many texts (two with `inner`). Thread-safe. Arrays may be read-only.
        Raises UnicodeEncodeError or TypeError where a text holds half a surrogate pair.

        inner   bool (n,): texts that stand where the reference puts no space in front
        """
        return _encode(self._encoders, texts, inner)

    def encode_reference(self, texts: Sequence[str], inner: NDArray[np.bool_] | None = None) -> Flat:
        """The same by the reference."""
        return _encode(self.reference, texts, inner)

    def disagreement(self, texts: Sequence[str]) -> str | None:
        """None where the library that encodes gives the reference's ids; else the first difference."""
        if self.is_reference or not texts:
            return None
        return disagreement(self._encoders, self.reference, texts, self.library)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens spelled out."""
        return self._words.decode([int(i) for i in ids])

    def token_id(self, token: str | int) -> int:
        """The id of a vocabulary entry, or `token` where it is an id. Raises ConfigError for neither."""
        size = self.vocab_size
        if isinstance(token, int):
            if not 0 <= token < size:
                raise ConfigError(
                    f"token id {token} is not in the vocabulary of {self.name}: 0 to {size - 1}"
                )
            return token
        found = self._words.id_of(token)
        if found is None:
            hint = nearest(token, [entry.word for entry in self._added])
            raise ConfigError(f"token {token!r} is not in the vocabulary of {self.name}{hint}")
        return found

    def token(self, token_id: int) -> str | None:
        """The vocabulary entry of an id."""
        return self._words.word_of(token_id)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._words.size

    def eos_id(self, token: str | int | None = None) -> int:
        """The document end: `token` where given, else what the tokenizer's files say.

        In this order: tokenizer_config.json's `eos_token`, what the file itself appends, the only one of the
        well-known ends that the vocabulary has. Raises ConfigError where that decides nothing.
        """
        return self._edge(token, "eos", self._around[1], _KNOWN_EOS)

    def bos_id(self, token: str | bool | int) -> int | None:
        """The document start: None for False, the tokenizer's own for True, else `token`."""
        if token is False:
            return None
        return self._edge(None if token is True else token, "bos", self._around[0], _KNOWN_BOS)

    def _edge(
        self, token: str | int | None, name: str, around: tuple[int, ...], known: tuple[str, ...]
    ) -> int:
        if token is not None:
            return self.token_id(token)
        named = self.setting_token(f"{name}_token")
        if named is not None:
            return self.token_id(named)
        if len(around) == 1:
            return around[0]
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
        return setting_word(self.settings, name)

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
        entries = [entry for entry in self._added if entry.special]
        # Longest first: an alternation takes the first that fits.
        entries.sort(key=lambda entry: -len(entry.word))
        words = [
            (r"\s*" if entry.lstrip else "") + re.escape(entry.word) + (r"\s*" if entry.rstrip else "")
            for entry in entries
        ]
        return re.compile("|".join(words) if words else r"(?!)")


def _encode(encoders: Encoders, texts: Sequence[str], inner: NDArray[np.bool_] | None) -> Flat:
    if not len(texts):
        return np.empty(0, np.int32), np.zeros(1, np.int64)
    if inner is None or encoders.inner is encoders.first or not inner.any():
        return encoders.first.encode(texts)
    if inner.all():
        return encoders.inner.encode(texts)
    halves = [
        encoder.encode([texts[i] for i in np.flatnonzero(inner == side).tolist()])
        for encoder, side in ((encoders.first, False), (encoders.inner, True))
    ]
    length = np.empty(len(texts), np.int64)
    for (_, offsets), side in zip(halves, (False, True), strict=True):
        length[inner == side] = np.diff(offsets)
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    ids = np.empty(int(offsets[-1]), np.int32)
    is_inner = np.repeat(inner, length)
    ids[~is_inner], ids[is_inner] = halves[0][0], halves[1][0]
    return ids, offsets
