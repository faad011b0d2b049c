"""The one EXIF entry that changes pixels: the orientation.

Read by hand because real EXIF is often broken, and a general reader answers that with warnings or
exceptions a picture; here whatever can't be read means "upright".
"""

from __future__ import annotations

import struct

_ORIENTATION = 0x0112
_SHORT = 3  # the entry's type by the standard


def orientation(blob: bytes) -> int:
    """1 to 8 from an EXIF block (a TIFF structure, with or without the `Exif` prefix); 1 if unreadable."""
    tiff = blob.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(tiff[:4]))
    if order is None:
        return 1
    try:
        (offset,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, offset)
        for entry in range(offset + 2, offset + 2 + 12 * entries, 12):
            tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, entry)
            if tag == _ORIENTATION:
                return value if kind == _SHORT and count == 1 and 1 <= value <= 8 else 1
    except struct.error:  # an offset beyond the end
        return 1
    return 1
