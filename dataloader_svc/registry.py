"""Name -> class, for everything a user can name in YAML and a third party can add.

Built-in implementations register on import of their package; others through an entry point of the
registry's group, loaded at first use. Knows nothing of what it holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from dataloader_svc.errors import ConfigError

T = TypeVar("T")


def nearest(name: str, allowed: list[str]) -> str:
    """`"; did you mean 'parquet'?"`, or nothing where no allowed name is close."""
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


class Registry(Generic[T]):
    """Implementations of one interface by name. `kind` words the errors; `group` is the entry-point group."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._items: dict[str, T] = {}
        self._entry_points_loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: `@SOURCES.register("parquet")`. A name can be taken once."""

        def add(item: T) -> T:
            if name in self._items:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._items[name] = item
            return item

        return add

    def get(self, name: str) -> T:
        """The implementation, or a ConfigError that lists what there is."""
        if name not in self._items:
            self._load_entry_points()
        if name not in self._items:
            known = self.names()
            raise ConfigError(
                f"unknown {self.kind} {name!r}; known: {', '.join(known)}{nearest(name, known)}"
            )
        return self._items[name]

    def names(self) -> list[str]:
        """All known names, sorted."""
        self._load_entry_points()
        return sorted(self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _load_entry_points(self) -> None:
        if self._entry_points_loaded:
            return
        self._entry_points_loaded = True
        for point in entry_points(group=self.group):
            if point.name not in self._items:
                self._items[point.name] = point.load()
