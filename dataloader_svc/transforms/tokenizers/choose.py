"""fastokens or the reference: the faster one where it gives the same ids, and one line where it does not.

At load both are compared on a shipped set of hard strings. What the sources hold is compared by
`loader/agreement.py` before a job starts, and a share of the documents for as long as it runs (`verify.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from dataloader_svc.config.schema import TokenizerBackend
from dataloader_svc.errors import ConfigError
from dataloader_svc.transforms.tokenizers.base import Encoder, Encoders, TokenizerFile
from dataloader_svc.transforms.tokenizers.hard_strings import HARD_STRINGS

log = logging.getLogger(__name__)

FAST = "fastokens"


class Choice(NamedTuple):
    """library: its name. encoders: of it. why: it and no other, in words that go on behind its name."""

    library: str
    encoders: Encoders
    why: str


def choose(file: TokenizerFile, backend: TokenizerBackend) -> Choice:
    """The library to use and what encodes. The one log line of a fall-back says why.

    Raises ConfigError where a library is asked for by name that can't serve this file.
    """
    if backend == file.library:
        return Choice(file.library, file.reference, "as tokenizer_backend says")
    if backend not in ("auto", FAST):
        raise ConfigError(
            f"tokenizer {file.name}: is read by {file.library}, not by {backend}; set tokenizer_backend: "
            f"auto or {file.library}"
        )
    if file.fast is None:
        if backend == "auto":
            return Choice(file.library, file.reference, f"nothing faster reads {file.name}")
        problem: str | None = f"it does not read what {file.library} reads"
    else:
        try:
            fast = file.fast()
            problem = _compare(fast, file)
        except Exception as error:  # whatever keeps it from loading or encoding: the reference serves
            problem = f"it can't load it: {type(error).__name__}: {error}"
        if problem is None:
            why = f"its ids are those of {file.library} on {len(HARD_STRINGS)} hard strings"
            return Choice(FAST, fast, why if backend == "auto" else "as tokenizer_backend says")
    if backend == FAST:
        raise ConfigError(
            f"tokenizer {file.name}: fastokens can't be used: {problem}; set tokenizer_backend: auto or "
            f"{file.library}"
        )
    log.warning(
        "tokenizer %s: using %s, not fastokens (some 100 times slower): %s", file.name, file.library, problem
    )
    return Choice(file.library, file.reference, f"not fastokens: {problem}")


def _compare(fast: Encoders, file: TokenizerFile) -> str | None:
    texts = [*HARD_STRINGS, *_control_strings(list(file.control))]
    return disagreement(fast, file.reference, texts, file.library)


def _control_strings(words: list[str]) -> list[str]:
    """Control words as someone might type them, of both ends of the list: some have over a thousand."""
    return [f"a {word} b{word}\n{word}" for word in (*words[:16], *words[-16:])]


def disagreement(fast: Encoders, reference: Encoders, texts: Sequence[str], name: str) -> str | None:
    """None where both give the same ids for each text; else the first difference, in words.

    Texts are taken as the start of a document and, where that is another thing, as the inside of one.
    `name`: of the reference.
    """
    problem = _disagreement(fast.first, reference.first, texts, name)
    if problem is None and reference.inner is not reference.first:
        problem = _disagreement(fast.inner, reference.inner, texts, name)
    return problem


def _disagreement(encoder: Encoder, reference: Encoder, texts: Sequence[str], name: str) -> str | None:
    found, expected = encoder.encode(texts), reference.encode(texts)
    for i, text in enumerate(texts):
        ours, theirs = (flat[0][flat[1][i] : flat[1][i + 1]].tolist() for flat in (found, expected))
        if ours != theirs:
            return f"its ids differ for {text[:40]!r}: {first_difference(ours, theirs, name)}"
    return None


def first_difference(ours: list[int], theirs: list[int], name: str) -> str:
    """Where two lists of ids part, in words. `name`: who made `theirs`."""
    pairs = zip(ours, theirs, strict=False)
    at = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    return f"{ours[at : at + 4]} where {name} has {theirs[at : at + 4]} (token {at} of {len(theirs)})"
