"""One column of a Mosaic MDS sample: its bytes -> the value, by the encoding that the shard names.

As `streaming/base/format/mds/encodings.py` of mosaicml-streaming 0.13 writes them. Pictures stay encoded; raw
ones (`pil`) become PNG. `pkl` is no encoding here: to read a pickle is to run what the file says.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dataloader_svc.errors import BadSample, Reason

PICKLE = "pkl"

_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_FLOATS = ("float16", "float32", "float64")
_DTYPES: Mapping[int, str] = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_SHAPE_DTYPES = ("<u1", "<u2", "<u4", "<u8")
_PNG_MODES = ("1", "L", "LA", "I;16", "RGB", "RGBA")


def base_of(encoding: str) -> str:
    """`ndarray` of `ndarray:uint8:3,4`: the part that is a name."""
    return encoding.partition(":")[0]


def is_known(encoding: str) -> bool:
    """Whether `decoded` can read it."""
    return base_of(encoding) in _DECODERS


def decoded(encoding: str, data: bytes, name: str) -> Any:
    """The value of column `name`. Raises BadSample where the bytes are none of that encoding."""
    base, _, arguments = encoding.partition(":")
    try:
        return _DECODERS[base](data, arguments)
    except (ValueError, ArithmeticError, LookupError, RecursionError, struct.error, OSError) as error:
        raise BadSample(Reason.BAD_RECORD, f"column {name!r} is no {encoding}: {error}") from error


def _text(data: bytes, _: str) -> str:
    return data.decode()


def _bytes(data: bytes, _: str) -> bytes:
    return data


def _json(data: bytes, _: str) -> Any:
    value = json.loads(data.decode())
    json.dumps(value, ensure_ascii=False).encode()  # half a character can't be encoded, nor tokenized
    return value


def _scalar(dtype: str) -> Callable[[bytes, str], int | float]:
    kind = np.dtype(dtype).newbyteorder("<")

    def read(data: bytes, _: str) -> int | float:
        if len(data) != kind.itemsize:
            raise ValueError(f"has {len(data)} bytes")
        value: int | float = np.frombuffer(data, kind)[0].item()
        return value

    return read


def _array(data: bytes, arguments: str) -> NDArray[Any]:
    """`[dtype: 1] [ndim and type of the shape: 1] [shape] [values]`, without what the encoding fixes."""
    dtype, _, fixed = arguments.partition(":")
    at = 0
    if not dtype:
        dtype, at = _DTYPES[data[0]], 1
    if fixed:
        shape = [int(side) for side in fixed.split(",")]
    else:
        kind = np.dtype(_SHAPE_DTYPES[data[at] % 4])
        stop = at + 1 + (data[at] >> 2) * kind.itemsize
        shape = np.frombuffer(data[at + 1 : stop], kind).tolist()
        at = stop
    if dtype not in _DTYPES.values():
        raise ValueError(f"dtype {dtype!r}")
    return np.frombuffer(data[at:], np.dtype(dtype).newbyteorder("<")).reshape(shape)


def _pil(data: bytes, _: str = "") -> bytes:
    """`[width: 4] [height: 4] [length of mode: 4] [mode] [pixels]` as PNG, which every reader knows."""
    width, height, length = struct.unpack_from("<III", data)
    mode = data[12 : 12 + length].decode()
    if mode not in _PNG_MODES:
        raise ValueError(f"mode {mode[:10]!r} is not one of {', '.join(_PNG_MODES)}")
    picture = Image.frombytes(mode, (width, height), data[12 + length :])
    made = io.BytesIO()
    picture.save(made, "PNG", compress_level=0)
    return made.getvalue()


def _parts(data: bytes, start: int) -> list[bytes]:
    """`[count: 4] [sizes: 4 each] [parts]` from byte `start` on."""
    (count,) = struct.unpack_from("<I", data, start)
    at = start + 4 + 4 * count
    if at > len(data):
        raise ValueError(f"{count} parts in {len(data)} bytes")
    parts = []
    for size in np.frombuffer(data[start + 4 : at], "<u4").tolist():
        parts.append(data[at : at + size])
        at += size
    if at != len(data):
        raise ValueError(f"parts of {at} bytes in {len(data)}")
    return parts


def _list(data: bytes, _: str) -> list[bytes]:
    return _parts(data, 4)  # behind four bytes kept for later use


def _list_pil(data: bytes, _: str) -> list[bytes]:
    return [_pil(part) for part in _parts(data, 4)]


_DECODERS: Mapping[str, Callable[[bytes, str], Any]] = {
    "str": _text,
    "bytes": _bytes,
    "json": _json,
    "int": _scalar("int64"),
    **{name: _scalar(name) for name in (*_SCALARS, *_FLOATS)},
    "str_int": lambda data, _: int(data.decode()),
    "str_float": lambda data, _: float(data.decode()),
    "str_decimal": lambda data, _: Decimal(data.decode()),
    "ndarray": _array,
    "jpeg": _bytes,
    "png": _bytes,
    "pil": _pil,
    "jpeg_array": lambda data, _: _parts(data, 0),
    "jpegarray": lambda data, _: _parts(data, 0),
    "list[jpeg]": _list,
    "list[png]": _list,
    "list[pil]": _list_pil,
}
