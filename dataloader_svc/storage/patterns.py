"""What the patterns of `path:` mean as text: braces, wildcards, schemes. Touches no file.

`files.py` looks the names up on this machine, `remote.py` in an object store.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from dataloader_svc.errors import SourceError

MAGIC = re.compile(r"[*?\[{]")
"""What makes a path component a pattern."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_BRACES = 1_000_000  # {0..99999999} is a slip of the finger, not a data set


def scheme_of(path: str) -> str | None:
    """`s3` of `s3://bucket/key`, in small letters; None for a path of this machine's file system."""
    found = _SCHEME.match(path)
    return None if found is None else found[1].lower()


def after_scheme(path: str) -> str:
    """`bucket/key` of `s3://bucket/key`."""
    return path.partition("://")[2]


def name_matches(name: str, pattern: str) -> bool:
    """Whether a path below a folder is meant, as by `glob.glob(recursive=True)`: a wildcard doesn't cross
    a slash, `**` stands for any number of folders, a hidden name needs a pattern that begins with a dot.
    """
    return _parts_match(name.split("/"), pattern.split("/"))


def _parts_match(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    first, *rest = patterns
    if first == "**":
        if not rest:
            return all(not part.startswith(".") for part in parts)
        if _parts_match(parts, rest):
            return True
        return bool(parts) and not parts[0].startswith(".") and _parts_match(parts[1:], patterns)
    if not parts or (parts[0].startswith(".") and not first.startswith(".")):
        return False
    return fnmatch.fnmatchcase(parts[0], first) and _parts_match(parts[1:], rest)


def expand_braces(text: str, pattern: str) -> list[str]:
    """`a{0..2}b` -> a0b, a1b, a2b. Zeros in front fix the width; braces that are no list stay as they are."""
    done = [""]
    for number, part in enumerate(_BRACES.split(text)):
        choices = [part] if number % 2 == 0 else _choices(part, pattern)
        if len(done) * len(choices) > _MAX_BRACES:
            raise SourceError(f"path {pattern!r}: braces stand for more than {_MAX_BRACES} files")
        done = [head + choice for head in done for choice in choices]
    if len(done) > 1 and any(len(_choices(body, pattern)) > 1 for body in _BRACES.findall(done[0])):
        raise SourceError(f"path {pattern!r}: braces inside braces are not expanded; give a list of patterns")
    return done


def _choices(body: str, pattern: str) -> list[str]:
    numbers = _RANGE.fullmatch(body)
    if numbers is None:
        return body.split(",") if "," in body else [f"{{{body}}}"]
    first, last = int(numbers[1]), int(numbers[2])
    if abs(last - first) >= _MAX_BRACES:
        raise SourceError(f"path {pattern!r}: braces stand for more than {_MAX_BRACES} files")
    padded = any(text.startswith("0") and len(text) > 1 for text in numbers.groups())
    width = max(len(numbers[1]), len(numbers[2])) if padded else 0
    step = 1 if last >= first else -1
    return [f"{number:0{width}d}" for number in range(first, last + step, step)]
