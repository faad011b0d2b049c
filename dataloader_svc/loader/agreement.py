"""Which library tokenizes a whole job, decided once, before any process of it is started.

`tokenizer_backend: auto` means fastokens where it gives the reference's ids on the hard strings
(`transforms/tokenizers/choose.py`) and on the beginning of the first block of every source. Two loaders that
decided for themselves could decide differently, and a restarted one again: so whoever starts a job decides,
and hands every process a configuration that names the library (docs/decisions/0005-tokenizer-backend.md).

The decision follows from the tokenizer, the libraries' versions, the sources' files and the seed alone. What
was found of a source is kept beside its index, so that only a first start compares.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from dataloader_svc.sources.fields import NUMBERS
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.transforms.base import MEDIA_KINDS
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.unicode import is_unicode

log = logging.getLogger(__name__)

_CHARACTERS = 2**18
"""Of each source: about a quarter of a second for the reference."""

_THREADS = 2


class Decision(NamedTuple):
    """The library for a whole job, and why that one, in words that go on behind its name."""

    library: str
    why: str


def decide_backend(
    tokenizer: Tokenizer,
    readers: Mapping[str, SourceReader],
    cache: Path,
    progress: Callable[[str], None] = lambda name: None,  # noqa: ARG005
) -> Decision:
    """The library that tokenizes all of `readers`: the tokenizer's own choice, or else its reference.

    The one log line of a fall-back names the first source that differs, in the configuration's order.
    Called with each name as it is done: `progress`, from this thread.
    """
    if tokenizer.is_reference:
        return Decision(tokenizer.backend_used, tokenizer.why)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda reader: _source_problem(tokenizer, reader, cache), readers.values())
        for name, problem in zip(readers, found, strict=True):
            progress(name)
            if problem is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                log.warning(
                    "tokenizer %s: using %s, not %s (some 100 times slower): on the first block of %s %s",
                    tokenizer.name,
                    tokenizer.library,
                    tokenizer.backend_used,
                    name,
                    problem,
                )
                why = f"not {tokenizer.backend_used}: on the first block of {name} {problem}"
                return Decision(tokenizer.library, why)
    return Decision(tokenizer.backend_used, f"{tokenizer.why} and on the first block of every source")


def _source_problem(tokenizer: Tokenizer, reader: SourceReader, cache: Path) -> str | None:
    """The first difference on a source's first block, in words; None where there is none."""
    file = cache / f"{_key(tokenizer, reader)}.agreement"
    with contextlib.suppress(OSError, ValueError, KeyError):  # not there, or not whole: compared again
        kept: str | None = json.loads(file.read_text())["problem"]
        return kept
    texts = list(first_texts(reader, _CHARACTERS))
    problem = tokenizer.disagreement(texts)
    with contextlib.suppress(OSError):  # a folder that can't be written costs a comparison a start
        _write(file, json.dumps({"source": reader.name, "problem": problem}))
    return problem


def first_texts(reader: SourceReader, characters: int) -> Iterator[str]:
    """Strings of the first rows of epoch 0's first block, in file order, up to `characters`."""
    order = reader.order(0)
    if not order.num_blocks:
        return
    for number in order.block(0).extents.tolist():
        rows = reader.read_extent(number)
        for role in (role for role in reader.roles if role not in (*MEDIA_KINDS, *NUMBERS)):
            for row, value in enumerate(rows.columns[role]):
                for text in _strings(value) if row not in rows.bad else ():
                    if not is_unicode(text):
                        continue
                    yield text[:characters]
                    characters -= len(text)
                    if characters <= 0:
                        return


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _key(tokenizer: Tokenizer, reader: SourceReader) -> str:
    """Of all that the comparison depends on."""
    order = reader.order(0)
    extents = order.block(0).extents.tolist() if order.num_blocks else []
    names = {role: list(names) for role, names in reader.fields.names.items()}
    versions = {name: version(name) for name in (tokenizer.library, tokenizer.backend_used)}
    values = [tokenizer.digest, versions, reader.index.digest, names, extents, _CHARACTERS]
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".agreement-")
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(text)
        Path(temporary).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
