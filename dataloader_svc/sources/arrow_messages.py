"""The messages of an Arrow IPC stream or file, found without reading their bodies.

A file is a stream between two magics, with a footer at its end that repeats where the batches lie. The walk
reads the stream only: it needs no footer, which a stream (a `datasets` cache) and a cut file don't have, and
the footer doesn't say how many rows a batch has. Knows nothing of columns: `arrow.py` goes on from here.

Layout: https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format; field numbers of the
flatbuffers are those of Message.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

SCHEMA, DICTIONARY, BATCH = 1, 2, 3
_FILE_MAGIC = b"ARROW1\0\0"
_CONTINUES = b"\xff\xff\xff\xff"  # in front of each length since Arrow 0.15
_MOST_METADATA = 256 * 2**20  # a longer one is damage: 100,000 columns take some 20 MB


class Damaged(Exception):
    """The bytes at this place are no message, or the file ends inside one."""


class Message(NamedTuple):
    """Where a message lies and what it says of itself.

    kind         SCHEMA, DICTIONARY, BATCH, or another number
    offset, length   byte range of the whole message, body included
    body_length  bytes of its body
    num_rows     of a batch; 0 for others
    compressed   whether the buffers of a batch are
    dictionary, is_delta   of a dictionary: its id, and whether it adds to what is there
    """

    kind: int
    offset: int
    length: int
    body_length: int
    num_rows: int = 0
    compressed: bool = False
    dictionary: int = 0
    is_delta: bool = False


def walk(file: BinaryIO, size: int) -> Iterator[Message]:
    """The messages of a file of `size` bytes, from its start to the mark of the end.

    Raises Damaged where the file ends without that mark inside a message, or holds something else.
    """
    offset = len(_FILE_MAGIC) if file.read(len(_FILE_MAGIC)) == _FILE_MAGIC else 0
    is_file = offset > 0
    while offset < size:
        file.seek(offset)
        prefix = _exactly(file, 4)
        head = 4
        if prefix == _CONTINUES:
            prefix = _exactly(file, 4)
            head = 8
        (metadata_length,) = struct.unpack("<i", prefix)
        if metadata_length == 0:
            return
        if not 16 <= metadata_length <= min(_MOST_METADATA, size):
            raise Damaged(f"no message at byte {offset}")
        message = _parsed(_exactly(file, metadata_length), offset, head + metadata_length)
        if offset + message.length > size:
            raise Damaged(f"ends inside the message at byte {offset}")
        yield message
        offset += message.length
    if is_file:
        raise Damaged("ends without its footer")


def _exactly(file: BinaryIO, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = file.read(length - len(data))
        if not more:
            raise Damaged("ends inside a message")
        data += more
    return data


def _parsed(metadata: bytes, offset: int, head: int) -> Message:
    try:
        message = _described(metadata, offset, head)
    except struct.error as error:
        raise Damaged(f"no message at byte {offset}") from error
    if message.body_length < 0 or message.num_rows < 0:
        raise Damaged(f"no message at byte {offset}")
    return message


def _described(metadata: bytes, offset: int, head: int) -> Message:
    root = _Table(metadata, struct.unpack_from("<I", metadata)[0])
    kind, body_length = root.number(1, "<B"), root.number(3, "<q")
    plain = Message(kind, offset, head + body_length, body_length)
    if kind == BATCH:
        batch = root.table(2)
        return plain._replace(num_rows=batch.number(0, "<q"), compressed=batch.has(3))
    if kind == DICTIONARY:
        header = root.table(2)
        return plain._replace(dictionary=header.number(0, "<q"), is_delta=bool(header.number(2, "<B")))
    return plain


class _Table:
    """A flatbuffer table: as much of the encoding as the walk needs. struct.error for a place outside."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place
        (back,) = struct.unpack_from("<i", data, _inside(place))
        self._fields = _inside(place - back)
        (self._end,) = struct.unpack_from("<H", data, self._fields)

    def number(self, field: int, form: str) -> int:
        """A number; 0, the default of all fields that are asked for, where it is absent."""
        place = self._field(field)
        return 0 if place == 0 else int(struct.unpack_from(form, self._data, self._place + place)[0])

    def table(self, field: int) -> _Table:
        """A table that a field points to."""
        place = self._place + self._field(field)
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])

    def has(self, field: int) -> bool:
        """Whether the field is there."""
        return self._field(field) != 0

    def _field(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot + 2 > self._end:
            return 0
        return int(struct.unpack_from("<H", self._data, self._fields + slot)[0])


def _inside(place: int) -> int:
    """The place itself; struct would take a negative one from the end, as if it were another table."""
    if place < 0:
        raise struct.error("before the start")
    return place
