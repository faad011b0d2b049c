"""A CRC-32 of a value and the place it belongs to: neither SQLite nor Redis notice a flipped bit in a value,
nor one value in another's place.
"""

from __future__ import annotations

import zlib


def checksum(place: str, data: bytes) -> int:
    """32 bits, unsigned."""
    return zlib.crc32(data, zlib.crc32(place.encode()))


def record_place(log: str, seq: int) -> str:
    """Of record `seq` of a log, also as errors say it."""
    return f"log {log}: record {seq}"


def entry_place(key: str) -> str:
    """Of the value under `key`, also as errors say it."""
    return f"key {key}"
