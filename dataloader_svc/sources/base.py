"""What a format has to say, and nothing else: the order, leases, quarantine, resume and memory are ours.

A format answers two questions: which *extents* a shard has (`index_shard`, once, cached by `index.py`), and
what the rows of an extent hold (`read`). To add one, write a subclass with these two methods in one file and
register it: `@SOURCES.register("name")`, or the entry-point group `dataloader_svc.sources` from a package of
your own. `dataloader_svc.testing.sources.SourceContract` is its exam. See docs/extending/source.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import BadSample
from dataloader_svc.registry import Registry
from dataloader_svc.storage import Match, Storage


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

    Roles: `text`, `messages`, `image`, `video`, `audio`, `interleaved` or `texts` and `images`, `input_ids`,
    `loss_mask`, `prompt`, `chosen` and `rejected`. Several names for a role: the first that a row has.

    raw       fields that the source's transforms look at (`filter`, `map`), by their own names: a column of
              `Rows.raw` each, values as Python has them, None where a row lacks one
    optional  roles that a row may lack: their value is an empty list then
    id_type   numpy type of token ids that are raw bytes
    pairs_are_text   preference pairs are strings as they stand, not messages
    """

    names: Mapping[str, tuple[str, ...]]
    raw: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    id_type: str | None = None
    pairs_are_text: bool = False

    def __iter__(self) -> Iterator[str]:  # iterating gives the roles
        return iter(self.names)


@dataclass(slots=True)
class Rows:
    """Rows of one extent, in file order, as columns.

    columns    role -> one value a row: text `str`; messages `list[dict]` (`chat_shapes.py`); image, video,
               audio `list` of `bytes` (encoded) or `str` (a path or URL to read), never None inside, empty
               for none; interleaved `list[dict]` (`parts.py`); texts and images lists as they stand;
               input_ids and loss_mask arrays of whole numbers; prompt, chosen and rejected `str`, or
               messages as above. `fields.role_value` makes each.
               Every role of the source has a column.
    bad        row (index in this extent) -> why it can't be used. Its values in `columns` mean nothing.
    raw        name -> one value a row, for each of `Fields.raw`
    """

    num_rows: int
    columns: dict[str, Sequence[Any]]
    bad: dict[int, BadSample] = field(default_factory=dict)
    raw: dict[str, Sequence[Any]] = field(default_factory=dict)


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


class NoOptions(Model):
    """Of a format that has none of its own."""


@dataclass(frozen=True, slots=True)
class FormatContext:
    """What a format is made with.

    fields         which of a row's fields serve
    storage        where bytes come from: do all reading through it
    extent_bytes   about how much to read at once, where the format leaves the choice
    options        `options:` of the source's YAML, checked by the format's `Options` model
    """

    fields: Fields
    storage: Storage = field(default_factory=Storage)
    extent_bytes: int = 2**20
    options: Model = field(default_factory=NoOptions)


class SourceFormat(ABC):
    """One format. Instances are made once a source and process; all methods may run in several threads.

    The first line of the class's docstring is what `dataloader-svc formats` says of it.

    index_version  raise it when `index_shard` finds other extents than before: cached indexes of another
                   version are made anew
    suffixes       what its files are mostly called; any name is read
    marks          names of files, or folders, that make a folder a data set of this format
    Options        what may stand under `options:` in a source's YAML
    """

    index_version: int = 1
    suffixes: ClassVar[tuple[str, ...]] = ()
    marks: ClassVar[tuple[str, ...]] = ()
    Options: ClassVar[type[Model]] = NoOptions

    def __init__(self, context: FormatContext) -> None:
        self.context = context

    def list_shards(self, patterns: Sequence[str], base_dir: Path) -> list[Match]:
        """The shards that `path:` means, in an order that never changes. Default: the files it matches.

        Raises SourceError where there are none.
        """
        return self.context.storage.matches(patterns, base_dir)

    @abstractmethod
    def index_shard(self, path: str) -> ShardIndex:
        """Find the extents of a shard, reading as little as the format allows.

        Raises SourceError for a shard that can't be used at all (unreadable, or a field of a type that can't
        serve). Rows that are bad one by one are no business of the index: they count as rows.
        """

    @abstractmethod
    def read(self, path: str, extent: Extent) -> Rows:
        """Read all rows of an extent. A pure function of the file: reading twice gives equal rows.

        Raises SourceError only where the whole extent can't be read, or where it holds another number of
        rows than the index says; a bad row goes to `Rows.bad`.
        """

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:  # noqa: ARG002
        """Names of the fields that the rows of an extent have, in order of appearance; () where nobody knows.

        For people who have no configuration yet (`check --deep FOLDER`): a mapping may name each of them, and
        `Fields.raw` too. Those that hold numbers alone may be left out: they are no text and no medium.
        Raises SourceError where the extent can't be read.
        """
        return ()

    def splits(self, folder: str) -> tuple[Mapping[str, object], ...]:  # noqa: ARG002
        """`options:` under which each part of a data set folder is read, of a format that has `marks`.

        Raises SourceError where the folder can't be read.
        """
        return ({},)


SOURCES: Registry[type[SourceFormat]] = Registry("format", "dataloader_svc.sources")
