"""How fast bytes come from a constructor, by the clock of who receives them.

Measured over frames that took long enough to tell: what lay in buffers when the reader came to it says
nothing of the link. Told to the service with each read; it decides by it whether to encode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

LEAST_S = 0.005
"""Shorter ones are of buffers, or too small to matter."""

_WEIGHT = 0.3  # of the newest: a link that changes is known after some five frames


class Link:
    """`watch` what comes; `bytes_per_s` is 0 until something was measured. One frame at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.bytes_per_s = 0.0
        self._clock = clock

    def watch(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """Pass them on. Timed from the first, a header that comes ahead of the payload, to the last."""
        began, num_bytes, first = 0.0, 0, True
        for message in messages:
            if first:
                began, first = self._clock(), False
            else:
                num_bytes += len(message)
            yield message
        took = 0.0 if first else self._clock() - began
        if num_bytes and took >= LEAST_S:
            measured = num_bytes / took
            before = self.bytes_per_s or measured
            self.bytes_per_s = before + _WEIGHT * (measured - before)
