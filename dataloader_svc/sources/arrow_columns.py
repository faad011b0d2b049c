"""Arrow tables as rows: which columns serve a role, and their values as `base.Rows` promises them.

Shared by every format that Arrow reads (parquet, Arrow IPC, ...). Columns are found by name in each shard, so
shards may differ in order and in columns nobody maps. Knows no file.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dataloader_svc.errors import BadSample, Reason, SourceError
from dataloader_svc.sources.base import Fields, Rows
from dataloader_svc.sources.fields import (
    NUMBERS,
    describe_missing,
    is_text,
    raw_root,
    role_value,
    value_inside,
)
from dataloader_svc.sources.id_arrays import numbers_column
from dataloader_svc.sources.preference import PAIR_ROLES
from dataloader_svc.sources.values import media_value
from dataloader_svc.transforms.base import MEDIA_KINDS

_WANTED = {
    "text": "a string",
    "messages": "a list of structs {role, content} or {from, value}",
    "interleaved": "a list of structs {type, text, image}",
    "texts": "a list of strings",
    "images": "a list",
    **dict.fromkeys(PAIR_ROLES, "a string, a list of structs {role, content}, or one such struct"),
    "input_ids": "a list of whole numbers, or binary",
    "loss_mask": "a list of whole numbers or booleans, or binary",
}


def check_schema(path: str, schema: pa.Schema, fields: Fields) -> dict[str, str]:
    """Role -> what the shard has instead, of roles that no column can serve (`ShardIndex.missing`).

    Raises SourceError for a column of a type that can't serve its role, or that is there twice.
    """
    for role, names in fields.names.items():
        for name in names:
            _check_type(path, schema, "text" if is_text(fields, role) else role, name)
    return {
        role: "column " + describe_missing(names, schema.names)
        for role, names in fields.names.items()
        if not set(names) & set(schema.names)
    }


def columns_in_use(schema: pa.Schema, fields: Fields) -> list[str]:
    """Names of the columns to read, of those that are there."""
    wanted = dict.fromkeys(name for names in fields.names.values() for name in names)
    looked_at = [raw_root(name, schema.names) or "" for name in fields.raw]
    return [name for name in dict.fromkeys([*wanted, *looked_at]) if name in schema.names]


def rows_of(table: pa.Table, num_rows: int, fields: Fields) -> Rows:
    """All rows of a table that holds `columns_in_use`; `num_rows` also where it has no column at all."""
    bad: dict[int, BadSample] = {}
    columns: dict[str, Any] = {}
    for role, names in fields.names.items():
        here = [(name, table.column(name)) for name in names if name in table.schema.names]
        if not here and role in fields.optional:
            columns[role] = [[] for _ in range(num_rows)]
        elif not here:
            error = BadSample(Reason.MISSING_FIELD, f"this shard has no column {' or '.join(names)}")
            columns[role] = [None] * num_rows
            bad.update((row, error) for row in range(num_rows) if row not in bad)
        elif is_text(fields, role):
            columns[role] = _text_column(*here[0], bad)
        elif role in NUMBERS and is_list(here[0][1].type) and not _is_list_view(here[0][1].type):
            name, column = here[0]
            columns[role], problems = numbers_column(column, name)
            for row, problem in problems.items():
                bad.setdefault(row, problem)
        else:
            columns[role] = _object_column(role, here, num_rows, bad, fields)
    raw: dict[str, Any] = {name: _raw_column(name, table, num_rows, bad) for name in fields.raw}
    return Rows(num_rows, columns, bad, raw)


def _raw_column(name: str, table: pa.Table, num_rows: int, bad: dict[int, BadSample]) -> list[Any]:
    """Values of the field `name`, maybe inside a struct; a row of one that is not UTF-8 is added to `bad`."""
    root = raw_root(name, table.schema.names)
    if root is None:
        return [None] * num_rows
    values = _to_python(table.column(root))
    for row, value in enumerate(values):
        if isinstance(value, UnicodeDecodeError):
            bad.setdefault(row, BadSample(Reason.BAD_RECORD, f"column {root!r} is not UTF-8"))
            values[row] = None
    return values if root == name else [value_inside(value, root, name) for value in values]


def _text_column(name: str, column: pa.ChunkedArray, bad: dict[int, BadSample]) -> list[str | None]:
    """Strings of a column, converted at once; null and undecodable ones are None and in `bad`."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_string() if pa.types.is_string_view(column.type) else pa.large_binary())
    values: list[Any]
    try:
        values = column.to_pylist()
        if not column.null_count and not (values and isinstance(values[0], bytes)):
            return values  # nothing to look for: touching each string again costs a tenth of making them
    except (UnicodeDecodeError, pa.ArrowException):  # some value is not UTF-8: find out which
        values = column.cast(pa.large_binary()).to_pylist()
    for row, value in enumerate(values):
        if value is None:
            bad.setdefault(row, BadSample(Reason.MISSING_FIELD, f"column {name!r} is null"))
        elif isinstance(value, bytes):
            try:
                values[row] = value.decode()
            except UnicodeDecodeError as error:
                values[row] = None
                detail = f"column {name!r} is not UTF-8 at byte {error.start}"
                bad.setdefault(row, BadSample(Reason.BAD_RECORD, detail))
    return values


def _object_column(
    role: str,
    columns: list[tuple[str, pa.ChunkedArray]],
    num_rows: int,
    bad: dict[int, BadSample],
    fields: Fields,
) -> list[Any]:
    """All but texts and lists of numbers: of several columns the first that is not null in a row."""
    raw = [(name, is_list(column.type), _to_python(column)) for name, column in columns]
    values: list[Any] = [None] * num_rows
    for row in range(num_rows):
        name, listed, cells = next((entry for entry in raw if entry[2][row] is not None), raw[0])
        cell = cells[row]
        try:
            if isinstance(cell, UnicodeDecodeError):
                raise BadSample(Reason.BAD_RECORD, f"column {name!r} is not UTF-8")
            if role in MEDIA_KINDS:
                null_is_none = listed or role in fields.optional
                values[row] = media_value(cell, name, null_is_none=null_is_none)
            else:
                values[row] = role_value(fields, role, cell, name)
        except BadSample as error:
            bad.setdefault(row, error)
    return values


def _to_python(column: pa.ChunkedArray) -> list[Any]:
    """Python values; a cell with a string that is not UTF-8 is the error itself."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = []
        for row in range(len(column)):
            try:
                values.append(column[row].as_py())
            except UnicodeDecodeError as error:
                values.append(error)
    return values


def _check_type(path: str, schema: pa.Schema, role: str, name: str) -> None:
    """SourceError for a column whose type can't serve the role, or that is there twice."""
    places = schema.get_all_field_indices(name)
    if not places:
        return
    if len(places) > 1:
        raise SourceError(f"{path}: has {len(places)} columns called {name!r}")
    found = schema.field(places[0]).type
    wanted = _WANTED.get(role, "binary, a string (a path), a struct {bytes, path}, or a list of them")
    if not _serves(role, found):
        raise SourceError(f"{path}: {role}: column {name!r} is {found}; it must be {wanted}")


def _serves(role: str, found: pa.DataType) -> bool:
    if isinstance(found, pa.BaseExtensionType):
        found = found.storage_type
    if pa.types.is_null(found):
        return True  # every row is null, which is told row by row
    if role == "text":
        return _is_bytes(found)
    if role in ("messages", "interleaved"):
        return is_list(found) and pa.types.is_struct(found.value_type)
    if role in PAIR_ROLES:
        return _is_bytes(found) or pa.types.is_struct(found) or _serves("messages", found)
    if role == "texts":
        return is_list(found) and (_is_bytes(found.value_type) or pa.types.is_null(found.value_type))
    if role == "images":
        return is_list(found)
    if role in NUMBERS:
        binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
        return any(test(found) for test in binary) or _is_list_of_numbers(found)
    if is_list(found):
        return not is_list(found.value_type) and _serves(role, found.value_type)
    return _is_bytes(found) or (
        pa.types.is_struct(found)
        and any(field.name in ("bytes", "path") and _is_bytes(field.type) for field in found)
    )


def _is_list_of_numbers(found: pa.DataType) -> bool:
    return is_list(found) and (pa.types.is_integer(found.value_type) or pa.types.is_boolean(found.value_type))


def is_list(found: pa.DataType) -> bool:
    """Variable or fixed length, or views."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, _is_list_view)
    return any(test(found) for test in tests)


def _is_list_view(found: pa.DataType) -> bool:
    # Cast to a list, pyarrow 26 makes an invalid array of one; as Python's lists they are right.
    return bool(pa.types.is_list_view(found) or pa.types.is_large_list_view(found))


def _is_bytes(found: pa.DataType) -> bool:
    """Strings or binary, plain or as dictionary."""
    if pa.types.is_dictionary(found):
        return _is_bytes(found.value_type)
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    )
    return any(test(found) for test in tests)
