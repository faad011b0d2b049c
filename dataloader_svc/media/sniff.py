"""What a medium is by its first bytes: for file names and reports, never to decide how it is decoded.

Decoders find out by themselves; a name or a field says what people meant. Knows signatures alone: that bytes
begin as a picture does is no proof that they are one.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

HEAD_BYTES = 512
"""So much of a medium's beginning is looked at."""

Kind = Literal["image", "video", "audio"]


class Sniffed(NamedTuple):
    """Kind of medium, and what files of its format are mostly called."""

    kind: Kind
    suffix: str


_BEGINNINGS = (
    (b"\xff\xd8\xff", Sniffed("image", ".jpg")),
    (b"\x89PNG\r\n\x1a\n", Sniffed("image", ".png")),
    (b"GIF87a", Sniffed("image", ".gif")),
    (b"GIF89a", Sniffed("image", ".gif")),
    (b"II*\0", Sniffed("image", ".tiff")),
    (b"MM\0*", Sniffed("image", ".tiff")),
    (b"\x1aE\xdf\xa3", Sniffed("video", ".mkv")),  # or .webm
    (b"FLV\x01", Sniffed("video", ".flv")),
    (b"\0\0\x01\xba", Sniffed("video", ".mpg")),
    (b"OggS", Sniffed("audio", ".ogg")),
    (b"fLaC", Sniffed("audio", ".flac")),
    (b"ID3", Sniffed("audio", ".mp3")),
)
_RIFF = {
    b"WEBP": Sniffed("image", ".webp"),
    b"AVI ": Sniffed("video", ".avi"),
    b"WAVE": Sniffed("audio", ".wav"),
}
_PICTURE_BRANDS = {b"avif": ".avif", b"avis": ".avif", b"heic": ".heic", b"heix": ".heic", b"mif1": ".heif"}
_TS_PACKET = 188
_SUFFIXES: dict[Kind, str] = {
    "image": ".avif .bmp .gif .heic .heif .jpe .jpeg .jpg .png .tif .tiff .webp",
    "video": ".avi .flv .m4v .mkv .mov .mp4 .mpeg .mpg .webm",  # .ts is mostly TypeScript
    "audio": ".aac .flac .m4a .mp3 .oga .ogg .opus .wav",
}


def sniff(data: bytes | memoryview) -> Sniffed | None:
    """What `data`, a medium or its first HEAD_BYTES, begins as; None for what is known to be none."""
    head = bytes(data[:HEAD_BYTES])
    for beginning, found in _BEGINNINGS:
        if head.startswith(beginning):
            return found
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        if brand in _PICTURE_BRANDS:
            return Sniffed("image", _PICTURE_BRANDS[brand])
        return Sniffed("audio", ".m4a") if brand == b"M4A " else Sniffed("video", ".mp4")
    # Two letters are no signature: the pixels of a bitmap begin a known number of bytes further on.
    if (
        head.startswith(b"BM")
        and len(head) >= 18
        and struct.unpack_from("<I", head, 14)[0] in (12, 40, 108, 124)
    ):
        return Sniffed("image", ".bmp")
    if len(head) > _TS_PACKET and head[0] == head[_TS_PACKET] == 0x47:
        return Sniffed("video", ".ts")
    if len(head) > 3 and head[0] == 0xFF and head[1] in (0xFB, 0xF3, 0xF2):
        return Sniffed("audio", ".mp3")
    return None


def suffix_of(data: bytes | memoryview) -> str:
    """For the name of a file that holds `data`; `.bin` where nobody knows."""
    found = sniff(data)
    return ".bin" if found is None else found.suffix


def kind_of_suffix(suffix: str) -> Kind | None:
    """What files with this suffix (".jpg", in any case) mostly are; None for what is mostly no medium."""
    return next(
        (kind for kind, known in _SUFFIXES.items() if suffix and suffix.lower() in known.split()), None
    )
