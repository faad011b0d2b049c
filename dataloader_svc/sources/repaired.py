"""A source whose files were repaired in place: its new files, read in the order that they had before.

Positions are a function of an index's extents, and a repair moves those. So each index that a job has used
leaves its *layout* beside the index cache: rows and bytes of the extents, by digest. `Layouts.matched` says
whether other files are a repair of one of them: every shard has as many rows as it had. Once `accept` has
noted that, `Layouts.apply` gives that index the extents, and the digest, of the layout. Rows are then found
by number (`SourceIndex.files`). That they stand in their old order is the word of who repaired them
(docs/decisions/0006).

A layout is a file `<hash of source and digest>.layout`, a note `<hash>.repair`; both are whole or absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import SourceError
from dataloader_svc.sources.index import ExtentColumns, SourceIndex, first_shards

_MAGIC = b"dataloader-svc layout 1\n"
_DIGEST_BYTES = 16
_COLUMNS = ("shard", "first_row", "num_rows", "num_bytes")
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What an order is made from. names: of the shards; extents: int64 (4, E), rows as in `_COLUMNS`."""

    digest: str
    names: tuple[str, ...]
    extents: NDArray[np.int64]

    @classmethod
    def of(cls, index: SourceIndex) -> Self:
        columns = [getattr(index.extents, name).astype(np.int64) for name in _COLUMNS]
        return cls(index.digest, index.names, np.stack(columns))

    @property
    def shard_rows(self) -> NDArray[np.int64]:
        """int64 (S,) rows of each shard."""
        return _shard_rows(self.extents[0], self.extents[2], len(self.names))

    def to_bytes(self) -> bytes:
        header = json.dumps({"digest": self.digest, "names": self.names}).encode()
        body = len(header).to_bytes(4, "little") + header + self.extents.astype("<i8").tobytes()
        return _MAGIC + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse. ValueError: it is no layout, or not all of one."""
        start = len(_MAGIC) + _DIGEST_BYTES
        body = data[start:]
        digest = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
        if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != digest:
            raise ValueError("no layout of this version, or damaged")
        length = int.from_bytes(body[:4], "little")
        header = json.loads(body[4 : 4 + length])
        extents = np.frombuffer(body, "<i8", offset=4 + length).reshape(len(_COLUMNS), -1)
        return cls(header["digest"], tuple(header["names"]), extents.astype(np.int64))

    def applied(self, files: SourceIndex) -> SourceIndex:
        """The index of the repaired `files` with this layout's extents and digest."""
        shard, first_row, num_rows, num_bytes = self.extents
        nowhere = np.zeros(len(shard), np.int64)
        columns = ExtentColumns(
            shard=shard.astype(np.int32),
            first_row=first_row,
            num_rows=num_rows,
            offset=nowhere,
            length=nowhere,
            num_bytes=num_bytes,
            extra=nowhere,
            kept=num_rows,
        )
        return replace(files, extents=columns, digest=self.digest, files=files.extents)

    def differences(self, files: SourceIndex) -> list[str]:
        """Why `files` can't be a repair of this: shards that are not the same, or have other rows."""
        added, gone = sorted(set(files.names) - set(self.names)), sorted(set(self.names) - set(files.names))
        found = [f"{name}: is gone; put it back" for name in gone]
        found += [f"{name}: is new; keep it for a source of its own" for name in added]
        now = dict(zip(files.names, _rows_of(files).tolist(), strict=True))
        bad = {shard.path: shard.reason for shard in files.bad_shards}
        paths = dict(zip(files.names, files.paths, strict=True))
        for name, rows in zip(self.names, self.shard_rows.tolist(), strict=True):
            if name in gone or rows == now[name]:
                continue
            if paths[name] in bad:
                found.append(f"{name}: had {rows} rows and can't be used now: {bad[paths[name]]}")
            elif not rows:
                what = f"gave no rows and has {now[name]} now: no position means them"
                found.append(f"{name}: {what}; keep it for a source of its own")
            else:
                what = "rows were added" if now[name] > rows else "rows are missing"
                found.append(f"{name}: had {rows} rows and has {now[name]} now: {what}; repair rows in place")
        if not found and files.names != self.names:
            found.append("the shards are listed in another order")
        return found

    def changes(self, files: SourceIndex) -> list[str]:
        """How `files` fail to begin with the shards of this, in words for people: by name, with a remedy."""
        gone = [name for name in self.names if name not in set(files.names)]
        found = [f"{name}: is gone; put it back" for name in gone]
        old = [name for name in self.names if name not in gone]
        last = max((number for number, name in enumerate(files.names) if name in set(old)), default=-1)
        between = [name for name in files.names[: last + 1] if name not in set(self.names)]
        found += [
            f"{name}: is new, and not listed after the others; give it a name that sorts last, or make it a "
            "source of its own"
            for name in between
        ]
        if [name for name in files.names if name in set(old)] != old:
            found.append("the shards are listed in another order; restore that of `path`")
        now = _by_shard(files.extents.shard, files.extents.num_rows, files.extents.num_bytes)
        then = _by_shard(self.extents[0], self.extents[2], self.extents[3])
        number = {name: index for index, name in enumerate(files.names)}
        for index, name in enumerate(self.names):
            if name in number and now.get(number[name]) != then.get(index):
                found.append(f"{name}: holds other rows, or is written otherwise; restore the file")
        return found


def _by_shard(
    shard: NDArray[np.integer], num_rows: NDArray[np.int64], num_bytes: NDArray[np.int64]
) -> dict[int, list[tuple[int, int]]]:
    """Rows and bytes of the extents of each shard that has any."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, *extent in zip(shard.tolist(), num_rows.tolist(), num_bytes.tolist(), strict=True):
        found.setdefault(number, []).append((extent[0], extent[1]))
    return found


def _shard_rows(shard: NDArray[np.int64], num_rows: NDArray[np.int64], shards: int) -> NDArray[np.int64]:
    rows = np.zeros(shards, np.int64)
    np.add.at(rows, shard, num_rows)
    return rows


def _rows_of(index: SourceIndex) -> NDArray[np.int64]:
    columns = index.extents if index.files is None else index.files
    return _shard_rows(columns.shard.astype(np.int64), columns.num_rows, len(index.names))


@dataclass(frozen=True, slots=True)
class Layouts:
    """Layouts and repairs of one source, in the folder of its index cache.

    Layouts go by the digest that jobs know, of the rows that the source's transforms keep; repairs by the
    digest of the files.
    """

    folder: Path
    source: str

    def keep(self, files: SourceIndex, digest: str) -> str | None:
        """Note the layout of a whole index under `digest`; what prevents it, for people, or None."""
        path = self._file(digest, "layout")
        if path.exists():
            return None
        try:
            self._write(path, Layout.of(files).to_bytes())
        except OSError as error:
            return f"layout not kept in {self.folder}: {error.strerror}; repaired files can't be readmitted"
        return None

    def matched(self, files: SourceIndex, digest: str) -> SourceIndex:
        """The index to read `files` by if they are a repair of what had `digest`; shards may follow those.

        Raises SourceError with what differs, or where no layout was kept.
        """
        layout = self._load(digest)
        if layout is None:
            raise SourceError(
                f"its files are not those that were planned, and index_cache {self.folder} has no layout of "
                "those: what their positions mean can't be told. Restore the files"
            )
        if files.names[: len(layout.names)] == layout.names:
            files = first_shards(files, len(layout.names))
        differences = layout.differences(files)
        if differences:
            more = len(differences) - _MOST_NAMED
            listed = "; ".join(differences[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
            raise SourceError(f"its files are no repair of those that were planned: {listed}")
        return layout.applied(files)

    def changes(self, files: SourceIndex, digest: str) -> str:
        """Why `files` don't begin with what had the index `digest`, for people, as far as can be told."""
        layout = self._load(digest)
        found = [] if layout is None else layout.changes(files)
        more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return "; ".join(found[:_MOST_NAMED]) + more

    def accept(self, files: SourceIndex, digest: str) -> None:
        """Note that `files`, whole and as they are, are a repair of what had `digest`, for all who open them.

        Raises SourceError where that can't be written.
        """
        try:
            self._write(self._file(files.digest, "repair"), digest.encode())
        except OSError as error:
            raise SourceError(f"index_cache {self.folder} can't be written: {error.strerror}") from None

    def apply(self, files: SourceIndex) -> SourceIndex:
        """The index to read by: that of `files`, or the layout that they are a repair of.

        Raises SourceError where that layout is lost: without it the files would be read in another order.
        """
        try:
            digest = self._file(files.digest, "repair").read_text()
        except OSError:
            return files
        layout = self._load(digest)
        if layout is None:
            raise SourceError(
                f"source {self.source!r}: its files are a repair, and the layout they had is lost from "
                f"index_cache {self.folder}: restore {self._file(digest, 'layout').name}"
            )
        return layout.applied(files)

    def _load(self, digest: str) -> Layout | None:
        try:
            return Layout.from_bytes(self._file(digest, "layout").read_bytes())
        except (OSError, ValueError, KeyError):
            return None

    def _file(self, digest: str, kind: str) -> Path:
        name = hashlib.blake2b(f"{self.source}\n{digest}".encode(), digest_size=16)
        return self.folder / f"{name.hexdigest()}.{kind}"

    def _write(self, path: Path, data: bytes) -> None:
        """In place, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=".layout-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise


def parts_of(index: SourceIndex, number: int) -> Sequence[tuple[int, int, int]]:
    """Where the rows of extent `number` lie in `index.files`: (extent there, first row in it, one past)."""
    files = index.files
    assert files is not None, "only a repaired source has its rows elsewhere"
    shard = int(index.extents.shard[number])
    start = int(index.extents.first_row[number])
    stop = start + int(index.extents.num_rows[number])
    low, high = np.searchsorted(files.shard, [shard, shard + 1]).tolist()
    first = low + int(np.searchsorted(files.first_row[low:high], start, "right")) - 1
    found = []
    for extent in range(first, high):
        begins, ends = int(files.first_row[extent]), int(files.first_row[extent] + files.num_rows[extent])
        if begins >= stop:
            break
        found.append((extent, max(start, begins) - begins, min(stop, ends) - begins))
    return found
