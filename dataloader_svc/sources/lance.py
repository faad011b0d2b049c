"""Lance: a shard is a fragment of one version of a data set, named by its data file.

A data set has a version for each change that was made to it, and grows while others read. A job reads the
one that `options.version` names, whatever is added later, so that its order stays; without one nothing is
read. Deleted rows are no rows. Lance reads its own files (only ranges of the mapped columns), so they must be
on this machine. Everything that it raises becomes a SourceError here, panics of its Rust code included.

Needs the package pylance (extra `lance`), imported when a source is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import SourceError
from dataloader_svc.sources.arrow_columns import check_schema, columns_in_use, rows_of
from dataloader_svc.sources.arrow_types import columns_beside_numbers
from dataloader_svc.sources.base import SOURCES, Extent, FormatContext, Rows, ShardIndex, SourceFormat
from dataloader_svc.storage import Match

_VERSIONS, _DATA = "_versions", "data"
_METADATA_BYTES = 16 * 2**20  # Lance would keep a gigabyte of each open data set
_CODE_PLACES = re.compile(r",?\s*/\S+\.rs:\d+:\d+")
_BLOBS = "all_binary"  # else a blob column gives where its bytes are


class LanceOptions(Model):
    """`options:` of a Lance source."""

    version: int | None = Field(
        default=None,
        gt=0,
        description="Version of the data set to read; must be given. What is added later changes nothing.",
    )


class _Opened(NamedTuple):
    """A data set at the version, and its fragments by the name of their first data file, in order."""

    dataset: Any
    fragments: Mapping[str, Any]


@SOURCES.register("lance")
class Lance(SourceFormat):
    """Lance data set at a fixed version, of which only the mapped columns are read. Extra `lance`.

    `offset`: first row in the fragment. `num_bytes`: share of the fragment's files, all columns.
    """

    marks = (_VERSIONS,)
    Options = LanceOptions

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        assert isinstance(context.options, LanceOptions)
        self._version = context.options.version
        self._fields = context.fields
        self._opened: dict[str, _Opened] = {}  # by folder

    def list_shards(self, patterns: Sequence[str], base_dir: Path) -> list[Match]:
        """The fragments of each data set folder, in the order of the version."""
        storage = self.context.storage
        found: dict[str, Match] = {}
        for pattern in patterns:
            if not storage.is_local(pattern):
                raise SourceError(
                    f"path {pattern!r}: a Lance data set is read from this machine's disks only"
                )
            versions = storage.matches([f"{pattern.rstrip('/')}/{_VERSIONS}/*.manifest"], base_dir)
            folders = {
                match.path.rpartition(f"/{_VERSIONS}/")[0]: match.name.rpartition(f"{_VERSIONS}/")[0]
                for match in versions
            }
            for folder, below in folders.items():
                for name in self._open(folder).fragments:
                    path = f"{folder}/{_DATA}/{name}"
                    found[path] = Match(path, f"{below}{_DATA}/{name}")
        return list(found.values())

    def index_shard(self, path: str) -> ShardIndex:
        """Count rows; the manifest knows them."""
        fragment = self._fragment(path)
        with _reading(path):
            missing = check_schema(path, _schema(fragment), self._fields)
            num_rows, physical = fragment.count_rows(), max(1, fragment.physical_rows)
            size = sum(file.file_size_bytes or 0 for file in fragment.data_files())
        row_bytes = max(1, (size or self.context.storage.stat(path).size) // physical)
        at_once = max(1, self.context.extent_bytes // row_bytes)
        extents = tuple(
            Extent(
                first, min(at_once, num_rows - first), first, 1, row_bytes * min(at_once, num_rows - first)
            )
            for first in range(0, num_rows, at_once)
        )
        return ShardIndex(extents, () if extents else (f"{path}: has no rows",), missing)

    def read(self, path: str, extent: Extent) -> Rows:
        """Read the mapped columns of a run of rows."""
        fragment = self._fragment(path)
        with _reading(path):
            present = columns_in_use(_schema(fragment), self._fields)
            if present:
                place = {"offset": extent.offset, "limit": extent.num_rows}
                table = fragment.to_table(present, blob_handling=_BLOBS, **place)
                num_rows = table.num_rows
            else:
                table = pa.table({})
                num_rows = max(0, min(extent.num_rows, fragment.count_rows() - extent.offset))
        if num_rows != extent.num_rows:
            raise SourceError(
                f"{path}: {extent.num_rows} rows from {extent.offset} on when indexed, {num_rows} now"
            )
        return rows_of(table, num_rows, self._fields)

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:  # noqa: ARG002
        """Those of the schema that are not numbers alone."""
        fragment = self._fragment(path)
        with _reading(path):
            return columns_beside_numbers(_schema(fragment))

    def splits(self, folder: str) -> tuple[Mapping[str, object], ...]:
        """The newest version."""
        return ({"version": _newest(folder)},)

    def _fragment(self, path: str) -> Any:
        folder, found, name = path.rpartition(f"/{_DATA}/")
        fragment = self._open(folder).fragments.get(name) if found else None
        if fragment is None:
            raise SourceError(f"{path}: is no data file of version {self._version} of a Lance data set")
        return fragment

    def _open(self, folder: str) -> _Opened:
        """The data set in a folder. Raises SourceError, with the newest version where none is given."""
        if folder not in self._opened:
            if self._version is None:
                raise SourceError(
                    f"{folder}: say which version to read, `options: {{version: {_newest(folder)}}}` for the "
                    "newest: the data set may grow, and the order of a job must not change with it"
                )
            try:
                dataset = _dataset(folder, self._version)
            except SourceError as error:
                newest = _newest(folder)  # raises where it is no data set, whatever the version
                raise SourceError(
                    f"{folder}: version {self._version} can't be opened, the newest is {newest}: {error}"
                ) from error
            with _reading(folder):
                self._opened[folder] = _Opened(dataset, dict(_named(folder, dataset.get_fragments())))
        return self._opened[folder]


def _named(folder: str, fragments: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for fragment in fragments:
        first = fragment.data_files()[0]
        if first.base_id is not None:
            raise SourceError(
                f"{folder}: is a shallow clone, whose data lies in another data set: name that one, or "
                "make a deep clone"
            )
        yield first.path, fragment


def _schema(fragment: Any) -> pa.Schema:
    """As `read` gives its columns."""
    return fragment.scanner(blob_handling=_BLOBS).projected_schema


def _newest(folder: str) -> int:
    return int(_dataset(folder, None).version)


def _dataset(folder: str, version: int | None) -> Any:
    try:
        import lance
    except ImportError as error:
        raise SourceError(
            f"{folder}: Lance needs the package pylance: pip install 'dataloader-svc[lance]' ({error})"
        ) from error
    with _reading(folder):
        return lance.dataset(folder, version=version, metadata_cache_size_bytes=_METADATA_BYTES)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Lance's errors as SourceError: Arrow's and Python's, and PanicException, which derives from none."""
    try:
        yield
    except SourceError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = _CODE_PLACES.sub("", str(error)).strip().splitlines() or [repr(error)]
        raise SourceError(f"{path}: is not readable as Lance: {text[0]}") from error
