"""Token ids and masks that come ready made -> arrays of whole numbers, a row each.

From a list of numbers, a `.npy` file, or raw numbers of a type that the source names (`id_type`, what
Megatron and nanoGPT write); of an Arrow list column the arrays are views, and no number is touched. What the
numbers may be is judged by `transforms/pretokenized.py`, a block at a time. No pickle is ever read.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sources.values import kind_of, wrong_type

_NPY = b"\x93NUMPY"
_WANTED = "a list of whole numbers"


def numbers_value(value: object, name: str, id_type: str | None = None) -> NDArray[Any]:
    """Array (n,) of whole numbers or booleans. `id_type`: numpy name of raw bytes' numbers, little-endian."""
    if value is None:
        raise BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    if isinstance(value, bytes):
        array = _npy(value, name) if value.startswith(_NPY) else _raw(value, name, id_type)
    elif isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, list):
        array = _of_list(value, name)
    else:
        raise wrong_type(name, value, _WANTED)
    if array.ndim != 1:
        raise BadSample(Reason.WRONG_TYPE, f"field {name!r} must be {_WANTED}, has shape {array.shape}")
    if array.dtype.kind not in "iub":
        raise BadSample(Reason.WRONG_TYPE, f"field {name!r} must be {_WANTED}, is of {array.dtype}")
    return array


def numbers_column(
    column: pa.ChunkedArray, name: str
) -> tuple[list[NDArray[Any] | None], dict[int, BadSample]]:
    """Views of an Arrow column of lists, a row each, and row -> what is wrong with it (then None)."""
    values: list[NDArray[Any] | None] = []
    bad: dict[int, BadSample] = {}
    for chunk in column.chunks:
        first = len(values)
        values += _views(chunk)
        flat, offsets = _flat(chunk)
        if flat.null_count:
            bounds = np.cumsum(np.concatenate([[0], np.asarray(flat.is_null())]))
            for row in np.flatnonzero(bounds[offsets[1:]] > bounds[offsets[:-1]]).tolist():
                values[first + row] = None
                bad[first + row] = BadSample(Reason.WRONG_TYPE, f"field {name!r} holds a null")
        if chunk.null_count:
            for row in np.flatnonzero(np.asarray(chunk.is_null())).tolist():
                values[first + row] = None
                bad[first + row] = BadSample(Reason.MISSING_FIELD, f"field {name!r} is null")
    return values, bad


def _flat(chunk: Any) -> tuple[pa.Array, NDArray[np.int64]]:
    """The numbers under a list array, and where in them each row begins and ends, int64 (n+1,)."""
    if pa.types.is_fixed_size_list(chunk.type):
        size = chunk.type.list_size
        return chunk.values, np.arange(chunk.offset, chunk.offset + len(chunk) + 1, dtype=np.int64) * size
    return chunk.values, np.asarray(chunk.offsets).astype(np.int64)


def _views(chunk: Any) -> list[NDArray[Any] | None]:
    flat, offsets = _flat(chunk)
    if flat.null_count:  # their rows are left out
        flat = flat.fill_null(False if pa.types.is_boolean(flat.type) else 0)
    numbers = flat.to_numpy(zero_copy_only=False)
    bounds = offsets.tolist()
    return [numbers[start:stop] for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]


def _of_list(value: list[Any], name: str) -> NDArray[Any]:
    kinds = set(map(type, value))  # numpy would take "7", 7.0 and [True, 7] in good faith
    if kinds <= {int} or kinds <= {bool}:
        try:
            return np.array(value, np.bool_ if kinds == {bool} else np.int64)
        except OverflowError:
            large = next(number for number in value if not -(2**63) <= number < 2**63)
            detail = f"field {name!r} holds {str(large)[:40]}, which is no 64-bit number"
            raise BadSample(Reason.WRONG_TYPE, detail) from None
    number, item = next((n, item) for n, item in enumerate(value) if type(item) is not int)
    if isinstance(item, float):
        raise BadSample(Reason.WRONG_TYPE, f"field '{name}[{number}]' must be a whole number, is {item!r}")
    raise wrong_type(f"{name}[{number}]", item, "a whole number")


def _npy(data: bytes, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError, MemoryError) as error:
        raise BadSample(Reason.BAD_RECORD, f"field {name!r} is no .npy array: {error}") from error
    return array


def _raw(data: bytes, name: str, id_type: str | None) -> NDArray[Any]:
    if id_type is None:
        raise BadSample(
            Reason.WRONG_TYPE,
            f"field {name!r} is {kind_of(data)}, not .npy: say of which numbers, as in `id_type: uint16`",
        )
    dtype = np.dtype(id_type).newbyteorder("<")
    if len(data) % dtype.itemsize:
        raise BadSample(
            Reason.TRUNCATED,
            f"field {name!r} has {len(data)} bytes, no multiple of {dtype.itemsize} ({id_type})",
        )
    return np.frombuffer(data, dtype)
