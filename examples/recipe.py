"""What the data recipes under `examples/` share: lock, staging folder, stamp, and files that repeat exactly.

A recipe is safe to repeat, to run twice at once, and to interrupt: it builds in `<out>/.staging` under a lock
and moves finished pieces into place, so a reader never meets half a file, and a stamp that matches its
ingredients makes the next run return at once. Knows nothing of what a recipe makes. The story goes on in
`demo/make_data.py` and `corpus/make_corpus.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import io
import json
import os
import random
import shutil
import statistics
import sys
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

STAMP = ".recipe.json"
LOCK = ".recipe.lock"
STAGING = ".staging"

In = TypeVar("In")
Out = TypeVar("Out")


class RecipeError(Exception):
    """Something the user can mend: one line that names what was found and the remedy."""


@dataclass(frozen=True, slots=True)
class Count:
    """One line of the table at the end. `sizes`: of each row, in `unit`."""

    name: str
    rows: int
    unit: str
    sizes: dict[str, int]
    num_bytes: int

    @classmethod
    def of(cls, name: str, unit: str, sizes: Sequence[int], files: Iterable[Path]) -> Count:
        ordered = sorted(sizes)
        quantiles = {
            "min": ordered[0],
            "median": int(statistics.median(ordered)),
            "p90": ordered[int(0.9 * (len(ordered) - 1))],
            "p99": ordered[int(0.99 * (len(ordered) - 1))],
            "max": ordered[-1],
        }
        return cls(name, len(ordered), unit, quantiles, sum(path.stat().st_size for path in files))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where a recipe writes, the names there that are its own, and what its result depends on."""

    name: str
    out: Path
    children: tuple[str, ...]
    ingredients: dict[str, str]
    keeps: tuple[str, ...] = field(default=())
    """Names in `out` that stay between runs (downloads)."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for this process; a second run waits. Refuses a folder that isn't ours."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise RecipeError(f"--out {self.out} is a file; name a folder") from None
        with (self.out / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._refuse_foreign()
            yield

    def _refuse_foreign(self) -> None:
        stamp = self._stamp()
        own = {STAMP, LOCK, STAGING, *self.keeps}
        if stamp is None:
            foreign = sorted(path.name for path in self.out.iterdir() if path.name not in own)
            if foreign:
                (self.out / LOCK).unlink()
                raise RecipeError(
                    f"{self.out} holds {foreign[0]!r} and no {STAMP} of this recipe; choose an empty --out"
                )
        elif stamp.get("recipe") != self.name:
            raise RecipeError(f"{self.out} was made by recipe {stamp.get('recipe')!r}; choose another --out")

    def _stamp(self) -> dict[str, object] | None:
        try:
            stamp = json.loads((self.out / STAMP).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return stamp if isinstance(stamp, dict) else None

    def finished(self) -> list[Count] | None:
        """The counts of an earlier run, if its ingredients were these and its files are all there."""
        stamp = self._stamp()
        if stamp is None or not stamp.get("complete") or stamp.get("ingredients") != self.ingredients:
            return None
        recorded, present = stamp.get("files"), self._files()
        # Others may put an index beside the data; what we wrote must be as we left it.
        if not isinstance(recorded, dict) or any(
            present.get(name) != size for name, size in recorded.items()
        ):
            return None
        counts = stamp.get("counts")
        return [Count(**entry) for entry in counts] if isinstance(counts, list) else None

    def _files(self) -> dict[str, int]:
        """Size in bytes of each published file, by its path below `out`."""
        found: dict[str, int] = {}
        for child in self.children:
            path = self.out / child
            inner = sorted(path.rglob("*")) if path.is_dir() else [path]
            found |= {str(p.relative_to(self.out)): p.stat().st_size for p in inner if p.is_file()}
        return found

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty folder beside the result; what is left of it is removed, also after a kill."""
        staging = self.out / STAGING
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging)

    def publish(self, staging: Path, counts: Sequence[Count]) -> None:
        """Moves the pieces into place. Interrupted half-way, the stamp says so and the next run rebuilds."""
        self._write_stamp({"complete": False})
        for child in self.children:
            target = self.out / child
            if target.is_dir():
                shutil.rmtree(target)
            if (staging / child).exists():
                (staging / child).replace(target)
            else:  # not made this time: what an earlier run made of it would be a lie
                target.unlink(missing_ok=True)
        entries = [asdict(count) for count in counts]
        self._write_stamp({"complete": True, "files": self._files(), "counts": entries})

    def _write_stamp(self, content: Mapping[str, object]) -> None:
        stamp = {"recipe": self.name, "ingredients": self.ingredients, **content}
        fresh = self.out / (STAMP + ".new")
        fresh.write_text(json.dumps(stamp, indent=1))
        fresh.replace(self.out / STAMP)


def keyed(*key: object) -> random.Random:
    """A generator that depends on the key alone: an item comes out the same whatever is made before it."""
    return random.Random("/".join(map(str, key)))


def digest_of(paths: Iterable[Path]) -> str:
    """Of the recipe's own sources: a changed recipe makes its data anew."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found: dict[str, str] = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def need_space(folder: Path, num_bytes: int) -> None:
    """Says before the work, not in its middle, that the disk is too small."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise RecipeError(
            f"{folder} has {free >> 20} MiB free, {num_bytes >> 20} MiB are needed; "
            "free some or choose another --out"
        )


def ordered_map(
    pool: Executor, function: Callable[[In], Out], items: Iterable[In], ahead: int
) -> Iterator[Out]:
    """Results in the order of the items, with at most `ahead` of them in memory."""
    window: deque[Future[Out]] = deque()
    try:
        for item in items:
            window.append(pool.submit(function, item))
            if len(window) >= ahead:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    finally:
        for future in window:
            future.cancel()


class TarShard:
    """A WebDataset shard: the members of a sample follow each other and share their key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 - __exit__ closes it

    def add(self, key: str, fields: Mapping[str, bytes]) -> None:
        for extension, content in fields.items():
            # Owner, mode and time stay at tarfile's constants: equal samples make equal bytes.
            member = tarfile.TarInfo(f"{key}.{extension}")
            member.size = len(content)
            self._tar.addfile(member, io.BytesIO(content))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tar.close()


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def show_counts(console: Console, counts: Sequence[Count]) -> None:
    table = Table(box=None, header_style="bold")
    for heading in ("source", "rows", "MB", "size in", "min", "median", "p90", "p99", "max"):
        table.add_column(heading, justify="left" if heading in ("source", "size in") else "right")
    for count in counts:
        sizes = [f"{count.sizes[name]:,}" for name in ("min", "median", "p90", "p99", "max")]
        table.add_row(count.name, f"{count.rows:,}", f"{count.num_bytes / 1e6:.1f}", count.unit, *sizes)
    console.print(table)


def run(main: Callable[[], int]) -> int:
    """`main` with its failures as one line and an exit code: 1 the user's to mend, 130 interrupted."""
    try:
        return main()
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
    except ImportError as error:
        print(f"error: {error}; pip install 'dataloader-svc[server,demo]'", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.strerror or error}: {error.filename or 'disk'}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; what was there before is unchanged", file=sys.stderr)
        return 130
    return 1


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
