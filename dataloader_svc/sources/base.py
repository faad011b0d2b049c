"""What a format has to say, and nothing else: the order, leases, quarantine, resume and memory are ours.

A format answers two questions: which *extents* a shard has (`index_shard`, once, cached by `index.py`), and
what the rows of an extent hold (`read`). To add one, write a class with these two methods in one file and
register it: `@SOURCES.register("name")`, or the entry-point group `dataloader_svc.sources` from a package of
your own. `dataloader_svc.testing.sources.SourceContract` is its exam. See docs/extending/source.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dataloader_svc.errors import BadSample
from dataloader_svc.registry import Registry


class Extent(NamedTuple):
    """What a format reads at once: `num_rows` (one or more) rows of a shard from `first_row` on.

    `offset`, `length` and `extra` are the format's own (byte range, row-group number, line number);
    `num_bytes` is the size of the rows in memory, as good as can be known without reading them.
    """

    first_row: int
    num_rows: int
    offset: int
    length: int
    num_bytes: int
    extra: int = 0


@dataclass(frozen=True, slots=True)
class Fields:
    """Which of a row's fields serve: role -> field name(s), from the YAML.

    Roles: `text`, `messages`, `image`, `video`. Several names for a role: the first that a row has.
    """

    names: Mapping[str, tuple[str, ...]]

    def __iter__(self) -> Iterator[str]:  # iterating gives the roles
        return iter(self.names)


@dataclass(slots=True)
class Rows:
    """Rows of one extent, in file order, as columns.

    columns    role -> one value a row: text `str`; messages `list[dict]`; image and video `list` of
               `bytes` (encoded) or `str` (a path or URL to read), never None inside, empty for none.
               Every role of the source has a column.
    bad        row (index in this extent) -> why it can't be used. Its values in `columns` mean nothing.
    """

    num_rows: int
    columns: dict[str, Sequence[Any]]
    bad: dict[int, BadSample] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The extents of one shard, without gaps in their rows.

    warnings   what is odd but no error (truncated tail, no rows).
    missing    role -> what the shard has instead of the field, where the format can tell. Its rows are read
               as bad ones; a role that is missing in every shard is a mistake in the mapping, and an error.
    """

    extents: tuple[Extent, ...]
    warnings: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows over all extents."""
        return sum(extent.num_rows for extent in self.extents)


class SourceFormat(Protocol):
    """One format. Instances are made once a source and process; both methods may run in several threads.

    A class may carry `index_version`, an int to raise when `index_shard` finds other extents than before:
    cached indexes of another version are made anew.
    """

    def __init__(self, fields: Fields, *, extent_bytes: int) -> None: ...

    def index_shard(self, path: str) -> ShardIndex:
        """Find the extents of a shard, reading as little as the format allows.

        Raises SourceError for a shard that can't be used at all (unreadable, or a field of a type that can't
        serve). Rows that are bad one by one are no business of the index: they count as rows.
        """
        ...

    def read(self, path: str, extent: Extent) -> Rows:
        """Read all rows of an extent. A pure function of the file: reading twice gives equal rows.

        Raises SourceError only where the whole extent can't be read, or where it holds another number of
        rows than the index says; a bad row goes to `Rows.bad`.
        """
        ...


SOURCES: Registry[type[SourceFormat]] = Registry("format", "dataloader_svc.sources")
