"""What Arrow types can hold, told from the schema alone."""

from __future__ import annotations

import pyarrow as pa


def columns_beside_numbers(schema: pa.Schema) -> tuple[str, ...]:
    """Names of the columns that may hold text or media, or values in which some lies.

    Numbers alone are left out: as objects of Python they take thirty times their size, and an embedding is
    of no use to anybody there.
    """
    return tuple(field.name for field in schema if not _is_number(field.type))


def _is_number(found: pa.DataType) -> bool:
    if isinstance(found, pa.BaseExtensionType):
        return _is_number(found.storage_type)
    if pa.types.is_dictionary(found):
        return _is_number(found.value_type)
    if pa.types.is_struct(found):
        return all(_is_number(field.type) for field in found)
    if pa.types.is_nested(found):  # lists of some kind, maps, unions
        return hasattr(found, "value_type") and not pa.types.is_map(found) and _is_number(found.value_type)
    return bool(pa.types.is_primitive(found))  # numbers, booleans, times
