"""What a kind of tokenizer file gives (`TokenizerFile`), and what encodes. Data and interfaces only.

A file has a *reference*: the library that defines its ids. Some have a faster one besides. `choose.py` takes
one of the two, `tokenizer.py` is what the rest of the service holds. To add a kind of file, write a function
that returns a `TokenizerFile` and name it in `load.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import ConfigError

Flat = tuple[NDArray[np.int32], NDArray[np.int64]]
"""Ids of all texts one after another, and n+1 offsets into them."""

Prefix = Literal["never", "first", "each"]
"""Where the reference puts a space in front of a text that has none: nowhere, at the start of a document, or
also behind every control token."""

_IN_BARS = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)


def in_bars(word: str) -> bool:
    """`<|User|>`, `<｜User｜>`: some vocabularies use such words for turns without calling them special."""
    return _IN_BARS.fullmatch(word) is not None


class Encoder(Protocol):
    """Text to ids, no control token among them. Thread-safe.

    Raises UnicodeEncodeError or TypeError where a text holds half a surrogate pair.
    """

    def encode(self, texts: Sequence[str]) -> Flat: ...


class Encoders(NamedTuple):
    """`inner` encodes what does not start a document: without the space that `first` puts in front.

    One and the same where the vocabulary puts none.
    """

    first: Encoder
    inner: Encoder


class Words(Protocol):
    """The vocabulary of a tokenizer, control tokens included."""

    @property
    def size(self) -> int:
        """One more than the largest id."""
        ...

    def id_of(self, word: str) -> int | None: ...

    def word_of(self, token_id: int) -> str | None: ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text, control tokens spelled out."""
        ...


class AddedToken(NamedTuple):
    """A token beside the model's own. `special` ones are control tokens; others are ordinary vocabulary.

    lstrip, rstrip   the white space on that side of it in a template goes with it
    """

    word: str
    id: int
    special: bool
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer as its file describes it.

    name        path, for messages
    library     name of the reference, as in `tokenizer_backend`
    content     all bytes that ids depend on
    around      ids that the file's own post-processor puts before and after a text
    fast        makes the fast encoders: called where they are wanted; raises where it can't load the file
    """

    name: str
    library: str
    content: bytes
    words: Words
    added: tuple[AddedToken, ...]
    settings: Mapping[str, Any]
    reference: Encoders
    fast: Callable[[], Encoders] | None
    prefix: Prefix = "never"
    around: tuple[tuple[int, ...], tuple[int, ...]] = field(default=((), ()))

    @property
    def control(self) -> dict[str, int]:
        """Word -> id of each control token."""
        return {token.word: token.id for token in self.added if token.special}


def flat(lists: Sequence[Sequence[int]]) -> Flat:
    """Lists of ids as `Flat`."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    return np.fromiter((i for ids in lists for i in ids), np.int32, count=int(offsets[-1])), offsets


def missing_library(package: str, file: str, extra: str, why: ImportError) -> ConfigError:
    """An optional library that a file needs is not installed."""
    return ConfigError(
        f"tokenizer {file}: is read by the package {package}, which can't be imported ({why}): "
        f"pip install 'dataloader-svc[{extra}]'"
    )
