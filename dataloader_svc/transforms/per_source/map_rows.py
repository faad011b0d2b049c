"""`map: mypackage.clean:strip_html`: a function of yours that changes a row, or leaves it out.

It is called in the loader with a dict of the row's mapped fields by role (`text`, `messages`, `image`,
`video`) and the `columns` asked for by their own names. It returns the changed dict, or None to leave the
row out. Whatever it raises makes one bad sample. A function that never returns can't be stopped: it runs in
a thread of the loader. Several threads may call it at once, and a block may be read again: it must depend
on its argument alone.

The module is found as Python finds it, and in the folder of the YAML. Its source is part of the digest that
a resume is held against (`config/code_files.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from dataloader_svc.config.code_files import split_function
from dataloader_svc.config.code_import import described, import_function
from dataloader_svc.config.schema import Model
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.registry import nearest
from dataloader_svc.transforms.per_source.base import FILTERED, TRANSFORMS, BlockRows, Transform

_DETAIL = 300
_MEDIA = ("image", "video", "audio")


class MapOptions(Model):
    """Options of `map`."""

    function: str = Field(description="MODULE:FUNCTION, e.g. mypackage.clean:strip_html.")
    columns: tuple[str, ...] = Field(
        default=(), description="Fields that it is given besides the mapped ones."
    )

    @field_validator("function")
    @classmethod
    def _both_parts(cls, value: str) -> str:
        split_function(value)
        return value


@TRANSFORMS.register("map")
class Map(Transform):
    """Change each row by a Python function."""

    Options = MapOptions
    shorthand = "function"

    def __init__(self, options: Model) -> None:
        super().__init__(options)
        assert isinstance(options, MapOptions), "checked by Options"
        self._name, self._columns = options.function, options.columns
        self._function: Callable[[dict[str, Any]], Any] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return self._columns

    def prepare(self, base_dir: Path) -> None:
        """Import the function. Raises ConfigError that says what is wrong with the import."""
        self._function = import_function(self._name, base_dir)

    def apply(self, rows: BlockRows) -> None:
        assert self._function is not None, "prepare comes first"
        for row in list(rows.remaining()):
            given = {role: values[row] for role, values in rows.columns.items()}
            given |= {name: rows.raw[name][row] for name in self._columns}
            try:
                changed = self._checked(self._function(dict(given)), given, rows)
            except KeyboardInterrupt:  # a person, who wants the command to end
                raise
            except BadSample as problem:
                rows.out[row] = problem
                continue
            # Not only Exception: sys.exit() in a stranger's function must not end the loader.
            except BaseException as error:
                rows.out[row] = BadSample(Reason.MAP_FAILED, f"{self._name}: {described(error)}")
                continue
            if changed is None:
                rows.out[row] = FILTERED
                continue
            for name, value in changed.items():
                (rows.columns if name in rows.columns else rows.raw)[name][row] = value

    def _checked(self, result: Any, given: Mapping[str, Any], rows: BlockRows) -> dict[str, Any] | None:
        """What it returned, where that can serve. Raises BadSample."""
        if result is None:
            return None
        if not isinstance(result, dict):
            raise self._useless(f"returned {type(result).__name__}; it must return the dict, or None")
        for name, value in result.items():
            if name not in given:
                known = sorted(given)
                raise self._useless(
                    f"returned {name!r}; fields: {', '.join(known)}{nearest(str(name), known)}"
                )
            if name not in rows.columns:
                continue
            before = given[name]
            if not isinstance(value, type(before)):
                raise self._useless(
                    f"returned {type(value).__name__} as {name!r}; it was given {type(before).__name__}"
                )
            if name in _MEDIA and not all(isinstance(item, bytes | str) and item for item in value):
                raise self._useless(f"returned a list as {name!r} that holds more than bytes and paths")
        return result

    def _useless(self, what: str) -> BadSample:
        return BadSample(Reason.MAP_FAILED, f"{self._name} {what}"[:_DETAIL])
