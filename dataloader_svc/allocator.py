"""Memory that a process has freed and its allocator keeps, and how little it is told to keep.

glibc has several heaps, so that threads need not wait for each other, and gives back what lies at a heap's
end alone. A loader frees as much as it holds: the text of a block, the parsed vocabulary. Its figures:
docs/benchmarks.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

ENVIRONMENT: Mapping[str, str] = {
    # Up to eight heaps a core by default. Two threads read, and what is large is no heap's.
    "MALLOC_ARENA_MAX": "2",
    # Its own pools give pages back and take them again for every row group: half of what reading text costs.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""For a process that is about to be started; allocators read it once."""


def give_back() -> None:
    """Have the allocator return free pages to the system. Milliseconds; releases the interpreter lock.

    Nothing where the C library has no such call: musl keeps little.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
