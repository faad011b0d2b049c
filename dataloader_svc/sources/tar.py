"""Tar headers -> the regular files of an archive, with their full names and exact byte places.

Knows old, ustar, GNU and pax archives (POSIX.1-2001 "pax"; GNU tar manual, "Basic Tar Format"), and nothing
of samples: `webdataset.py` groups the members. Not `tarfile.TarFile`: that takes a damaged header for the end
of the archive without a word, and takes four times as long; the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 512
Read = Callable[[int, int], bytes]
"""(offset, length) -> bytes, fewer at the end."""

_REGULAR = frozenset(b"0\x007")
_WITHOUT_DATA = frozenset(
    b"123456"
)  # links, devices, folders: a size there is a hint, or an old writer's mistake
_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK = b"xgLK"
_MAX_HEADER_BYTES = 2**20  # of an extended header: a larger one is damage


class Member(NamedTuple):
    """A file in an archive: `start` is where its headers begin, `data` its bytes, `stop` the next header."""

    name: str
    start: int
    data: int
    size: int
    stop: int


class Damaged(Exception):
    """The archive can't be followed beyond this byte. `name`: the member that is cut, if known."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


def members(read: Read, offset: int, size: int) -> Iterator[Member]:
    """Regular files whose headers lie in `offset` .. `size`, up to the end mark or `size`.

    Names that are not UTF-8 have their odd bytes escaped, so that they can be printed.
    Raises Damaged where a header is broken or a member goes beyond `size`.
    """
    start, name, real_size = offset, None, None  # of the member, as extended headers before it give them
    while offset < size:
        block = read(offset, BLOCK)
        if not block.strip(b"\0"):
            return
        kind, header_name, member_size = _header(block, offset)
        extended = kind in (_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK)
        if kind in _WITHOUT_DATA:
            member_size = 0
        elif not extended and real_size is not None:
            member_size = real_size
        data = offset + BLOCK
        stop = data + -(-member_size // BLOCK) * BLOCK
        if member_size < 0 or data + member_size > size:
            cut = name or header_name
            raise Damaged(f"cut inside {cut!r}: {member_size} bytes at {data}, there are {size}", cut)
        offset = stop
        if extended:
            if member_size > _MAX_HEADER_BYTES:
                raise Damaged(f"extended header of {member_size} bytes at byte {data}")
            if kind == _GNU_NAME:
                name = _text(read(data, member_size))
            elif kind == _PAX:
                name, real_size = _pax(read(data, member_size), name)
            continue
        if kind in _REGULAR:
            yield Member(name or header_name, start, data, member_size, stop)
        start, name, real_size = stop, None, None


def check_header(block: bytes) -> None:
    """Raise Damaged unless an archive may begin with this block."""
    if block.strip(b"\0"):
        _header(block, 0)


def _header(block: bytes, offset: int) -> tuple[int, str, int]:
    """(type, name, size) of a header block, its checksum checked."""
    if len(block) < BLOCK:
        raise Damaged(f"cut inside a header at byte {offset}")
    total = sum(block) - sum(block[148:156]) + 8 * 32
    stored = _number(block[148:156], offset)
    if stored != total:
        signed = total - 256 * sum(byte > 127 for byte in block[:148] + block[156:])  # some old writers
        if stored != signed:
            raise Damaged(f"no tar header at byte {offset} (wrong checksum)")
    kind, name = block[156], _text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = f"{_text(block[345:500])}/{name}"
    return kind, name, _number(block[124:136], offset)


def _number(field: bytes, offset: int) -> int:
    """Octal digits, or base 256 where the first bit is set."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big", signed=field[0] == 0xFF)
    digits = field.partition(b"\0")[0].strip() or b"0"
    try:
        return int(digits, 8)
    except ValueError as error:
        raise Damaged(f"no tar header at byte {offset} ({digits!r} is no number)") from error


def _pax(data: bytes, name: str | None) -> tuple[str | None, int | None]:
    """Path and size of a pax header: records of "length keyword=value", a line each."""
    size = None
    while data.strip(b"\0"):
        digits = data.partition(b" ")[0]
        if not digits.isdigit() or not len(digits) < int(digits) <= len(data):
            raise Damaged(f"broken pax header {data[:40]!r}")
        keyword, _, value = data[len(digits) + 1 : int(digits)].removesuffix(b"\n").partition(b"=")
        if keyword == b"path":
            name = _text(value)
        elif keyword == b"size" and value.isdigit():
            size = int(value)
        data = data[int(digits) :]
    return name, size


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="backslashreplace")
