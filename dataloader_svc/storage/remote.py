"""Files of object stores and web servers, through fsspec: sizes, ranges, listings.

Asks for ranges, again where that may help (`failure.py` knows when), and keeps what came in `cache.py`. A
body of another length than was asked for counts as no answer. Libraries' own retries are turned off where
they can be: ours have the deadline. Knows nothing of patterns or formats; `files.py` is the one door.

What a file is now is asked in `stat`; reads trust the last answer, so that an extent costs one request and
not two. Formats and the reader call `stat` before each extent.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import tenacity

from dataloader_svc.config.schema import StorageSettings
from dataloader_svc.errors import SourceError, Unreachable
from dataloader_svc.registry import nearest
from dataloader_svc.storage.cache import BlockCache
from dataloader_svc.storage.failure import Truncated, as_source_error, failure_of, is_transient, is_transport
from dataloader_svc.storage.filestat import FileStat
from dataloader_svc.storage.patterns import scheme_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = logging.getLogger(__name__)

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "s3": ("fsspec", "s3fs"),
    "gs": ("fsspec", "gcsfs"),
    "hf": ("fsspec", "huggingface_hub"),
    "https": ("fsspec", "aiohttp"),
    "http": ("fsspec", "aiohttp"),
    "memory": ("fsspec",),
}
"""Schemes that are read, and what has to be installed for each."""

BLOCK = 256 * 2**10
"""Least that is asked for, and the unit of the cache. At 100 MB/s it takes no longer than the request."""

_SLOWEST = 2**20  # bytes a second; a large range gets as much more time as it would take at this rate
_STATS_KEPT = 100_000
_WAIT_LONGEST_S = 20.0
_OWN_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "s3": {"config_kwargs": {"retries": {"total_max_attempts": 1}}},
}


class RemoteFiles:
    """Reads URLs of the schemes in PACKAGES. Safe to call from several threads.

    settings   the `storage:` section
    cache      None: nothing is kept
    wait_s     mean pause before the first repetition; each next is drawn from a window twice as long, up to
               20 s, so that loaders that fail together don't come back together
    """

    def __init__(
        self, settings: StorageSettings, cache: BlockCache | None = None, *, wait_s: float = 0.25
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._wait_s = wait_s
        self._systems: dict[str, Any] = {}
        self._stats: OrderedDict[str, FileStat] = OrderedDict()
        self._lock = threading.Lock()

    def stat(self, url: str) -> FileStat:
        """Size and version of a file as it is now: one request."""
        info = self._info(url)
        if info.get("type") != "file":
            raise as_source_error(url, FileNotFoundError(url), "one attempt")
        if info.get("size") is None:
            raise SourceError(f"{url}: the server tells no size of it, so it can't be read in ranges")
        return self._remember(url, info)

    def is_file(self, url: str) -> bool:
        """Whether there is such a file. Raises SourceError where that can't be found out."""
        try:
            info = self._info(url)
        except SourceError as error:
            if _says_missing(error):
                return False
            raise
        if info.get("type") == "file" and info.get("size") is not None:
            self._remember(url, info)
        return info.get("type") == "file"

    def files_below(self, folder: str, *, recursive: bool) -> list[str]:
        """Names of the files in a folder (and in those below it), relative to it. Empty if there is none."""
        try:
            found = self._ask(folder, "find", withdirs=False, maxdepth=None if recursive else 1, detail=True)
        except SourceError as error:
            if _says_missing(error):
                return []
            raise
        root = self._system(folder)._strip_protocol(folder).rstrip("/") + "/"  # noqa: SLF001
        return [name.removeprefix(root) for name, info in found.items() if info.get("type") == "file"]

    def open(self, url: str) -> RemoteFile:
        """A file that reads ranges, ahead of what is asked for where it is read on and on."""
        return RemoteFile(self, url, self.last_stat(url).size, self._settings.read_ahead)

    def read_all(self, url: str) -> bytes:
        """The whole file."""
        return self.read(url, 0, self.stat(url).size)

    def read(self, url: str, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop`, fewer where the file ends before."""
        stat = self.last_stat(url)
        stop = min(stop, stat.size)
        if start >= stop:
            return b""
        if self._cache is None:
            return self._fetch(url, start, stop)
        first, last = start // BLOCK, -(-stop // BLOCK)
        whole = b"".join(self._blocks(url, stat, first, last))
        return whole[start - first * BLOCK : stop - first * BLOCK]

    def last_stat(self, url: str) -> FileStat:
        """What the last `stat` said, or a new one's answer."""
        with self._lock:
            stat = self._stats.get(url)
        return self.stat(url) if stat is None else stat

    def _blocks(self, url: str, stat: FileStat, first: int, last: int) -> Iterator[bytes]:
        """Blocks `first` to `last` (exclusive). A run of them that is not in the cache is one request."""
        cache = self._cache
        assert cache is not None
        version = hashlib.blake2b(f"{url}\n{stat.size}\n{stat.mtime_ns}".encode(), digest_size=16).hexdigest()
        kept = {number: cache.get(f"{version}-{number}") for number in range(first, last)}
        for here, run in itertools.groupby(kept, lambda number: kept[number] is not None):
            numbers = list(run)
            if here:
                yield from (kept[number] or b"" for number in numbers)
                continue
            start = numbers[0] * BLOCK
            data = self._fetch(url, start, min((numbers[-1] + 1) * BLOCK, stat.size))
            for number in numbers:
                cache.put(f"{version}-{number}", data[number * BLOCK - start : (number + 1) * BLOCK - start])
            yield data

    def _fetch(self, url: str, start: int, stop: int) -> bytes:
        """One range in one request, again until it is whole."""
        before = self.last_stat(url)

        def check(data: bytes) -> bytes:
            if len(data) == before.size and len(data) > stop - start:
                data = data[start:stop]  # the server doesn't know ranges and has sent all
            if len(data) != stop - start:
                raise Truncated(f"{len(data)} bytes of {stop - start} at {start}")
            return data

        try:
            data: bytes = self._ask(
                url, "cat_file", start=start, end=stop, check=check, num_bytes=stop - start
            )
        except SourceError as error:
            if isinstance(error.__cause__, Truncated) and self.stat(url) != before:
                raise SourceError(
                    f"{url}: changed while it was read; wait until it is written, then start again"
                ) from error
            raise
        return data

    def _info(self, url: str) -> Mapping[str, Any]:
        return self._ask(url, "info", check=lambda info: info)  # type: ignore[no-any-return]

    def _ask(
        self,
        url: str,
        method: str,
        check: Callable[[Any], Any] = lambda answer: answer,
        num_bytes: int = 0,
        **arguments: Any,
    ) -> Any:
        """Call a method of the URL's file system until `check` takes its answer. Raises SourceError."""
        system, settings = self._system(url), self._settings
        began = time.monotonic()
        attempts = 0

        def attempt() -> Any:
            nonlocal attempts
            attempts += 1
            left = settings.deadline - (time.monotonic() - began)
            limit = max(0.001, min(left, settings.timeout + num_bytes / _SLOWEST))
            return check(_call(system, method, url, limit, arguments))

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(settings.retries + 1)
            | tenacity.stop_before_delay(settings.deadline),
            wait=tenacity.wait_random_exponential(multiplier=2 * self._wait_s, max=_WAIT_LONGEST_S),
            retry=tenacity.retry_if_exception(is_transient),
            before_sleep=lambda state: _tell(url, state),
            reraise=True,
        )
        try:
            return retrying(attempt)
        except Exception as error:  # turned into ours, or raised as it is
            if isinstance(error, SourceError) or not is_transport(error):
                raise
            took = time.monotonic() - began
            raise as_source_error(url, error, f"{attempts} attempts in {took:.0f} s") from error

    def _remember(self, url: str, info: Mapping[str, Any]) -> FileStat:
        stat = FileStat(int(info["size"]), _version(info))
        with self._lock:
            self._stats[url] = stat
            self._stats.move_to_end(url)
            while len(self._stats) > _STATS_KEPT:
                self._stats.popitem(last=False)
        return stat

    def _system(self, url: str) -> Any:
        """The fsspec file system of a URL, made once."""
        scheme = scheme_of(url) or ""
        with self._lock:
            if scheme not in self._systems:
                self._systems[scheme] = _make_system(url, scheme, self._settings.options.get(scheme, {}))
            return self._systems[scheme]


class RemoteFile(io.RawIOBase):
    """A remote file, open for reading: holds the bytes around the place last read, and no connection.

    Read on and on, it asks for twice as much each time, up to `read_ahead`; a jump begins at one block again.
    A short step forward, as over the data behind a tar header, counts as reading on.
    """

    def __init__(self, files: RemoteFiles, url: str, size: int, read_ahead: int) -> None:
        super().__init__()
        self.name = url
        self._files = files
        self._size = size
        self._read_ahead = max(BLOCK, read_ahead)
        self._ahead = BLOCK
        self._position = 0
        self._start = 0
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: seek before the beginning")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """As many bytes as fit; fewer only at the end of the file."""
        into = memoryview(buffer).cast("B")
        done = 0
        while done < len(into) and self._position < self._size:
            offset = self._position - self._start
            if not 0 <= offset < len(self._held):
                self._fill(len(into) - done)
                continue
            part = self._held[offset : offset + len(into) - done]
            into[done : done + len(part)] = part
            done += len(part)
            self._position += len(part)
        return done

    def _fill(self, wanted: int) -> None:
        step = self._position - (self._start + len(self._held))
        self._ahead = min(2 * self._ahead, self._read_ahead) if 0 <= step <= self._ahead else BLOCK
        stop = self._position + max(wanted, self._ahead)
        stop = min(self._size, -(-stop // BLOCK) * BLOCK)
        self._start = self._position
        self._held = memoryview(self._files.read(self.name, self._position, stop))


def _make_system(url: str, scheme: str, options: Mapping[str, Any]) -> Any:
    if scheme not in PACKAGES:
        known = sorted({*PACKAGES, "file"} - {"memory"})
        raise SourceError(
            f"{url}: {scheme}:// is not read; known: {', '.join(known)}{nearest(scheme, known)}"
        )
    absent = [name for name in PACKAGES[scheme] if importlib.util.find_spec(name) is None]
    if absent:
        raise SourceError(f"{url}: needs {' and '.join(absent)}: pip install 'dataloader-svc[stores]'")
    import fsspec

    settings = {**_OWN_DEFAULTS.get(scheme, {}), **options}
    system: Any = fsspec.get_filesystem_class(scheme)(
        **settings, skip_instance_cache=True, use_listings_cache=False
    )
    if hasattr(system, "retries"):
        system.retries = 1  # s3fs repeats without a deadline
    return system


def _call(system: Any, method: str, url: str, limit_s: float, arguments: Mapping[str, Any]) -> Any:
    """One request. Only asynchronous file systems can be held to the limit."""
    path = system._strip_protocol(url)  # noqa: SLF001
    if not system.async_impl:
        return getattr(system, method)(path, **arguments)
    import fsspec.asyn

    return fsspec.asyn.sync(system.loop, getattr(system, f"_{method}"), path, timeout=limit_s, **arguments)


def _says_missing(error: SourceError) -> bool:
    """Whether it is a store's word that there is no such thing, and not a missing package of ours."""
    return error.__cause__ is not None and not isinstance(error, Unreachable)


def _tell(url: str, state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    reason = failure_of(error).text if error else ""
    log.info("%s: %s; again in %.1f s", url, reason, state.upcoming_sleep)


def _version(info: Mapping[str, Any]) -> int:
    """From the ETag, or else from the time of the last change; 0 where the server tells neither."""
    for key in ("ETag", "etag", "xet_hash", "blob_id", "md5Hash", "generation"):
        if info.get(key):
            digest = hashlib.blake2b(str(info[key]).encode(), digest_size=8).digest()
            return int.from_bytes(digest, "little") >> 1  # the index keeps it as a signed number
    for key in ("LastModified", "mtime", "updated", "last_modified", "created"):
        value = info.get(key)
        if value:
            return _nanoseconds(value)
    return 0


def _nanoseconds(value: object) -> int:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        moment = parsedate_to_datetime(str(value))  # as in HTTP headers
    return int(moment.timestamp() * 1e6) * 1000
