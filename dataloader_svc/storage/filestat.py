"""What tells that a file is not what it was."""

from __future__ import annotations

from typing import NamedTuple


class FileStat(NamedTuple):
    """Size in bytes and time of the last change in ns: enough to tell that a file is not what it was.

    For a remote file a number made from its ETag may stand for the time: it only serves to be compared.
    """

    size: int
    mtime_ns: int
