"""Debian packages without root: which file a package is, fetched once, unpacked into a folder.

Uses `apt-get download` and `dpkg-deb -x`, which need no root and change nothing of the system. Knows
nothing of what is inside; `material.py` does.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe import RecipeError

REMEDY = "refresh apt's lists (sudo apt-get update), or leave it out with --without"


@dataclass(frozen=True, slots=True)
class Deb:
    """A package file as apt's lists know it. `sha256` is empty where the list has another digest only."""

    package: str
    file: str
    num_bytes: int
    sha256: str


def need_tools() -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise RecipeError(
                f"{tool} isn't installed: the corpus is made from Debian packages; use Debian 12"
            )


def _apt(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["apt-get", "-q", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def _complaint(result: subprocess.CompletedProcess[str]) -> str:
    errors = [line[2:].strip() for line in result.stderr.splitlines() if line.startswith("E:")]
    return errors[0] if errors else f"apt-get ended with {result.returncode}"


def resolve(packages: Sequence[str]) -> list[Deb]:
    """The file of each package. Raises RecipeError that names the first that apt doesn't have."""
    # From an empty folder: apt says nothing of a file that it finds in the current one.
    with tempfile.TemporaryDirectory() as empty:
        result = _apt(["download", "--print-uris", *packages], Path(empty))
    if result.returncode:
        raise RecipeError(f"{_complaint(result)}; {REMEDY}")
    debs: dict[str, Deb] = {}
    for line in result.stdout.splitlines():
        if line.startswith("'"):
            _, file, size, digest = (*shlex.split(line), "")[:4]
            package = file.partition("_")[0]
            debs[package] = Deb(package, file, int(size), digest.removeprefix("SHA256:"))
    missing = [package for package in packages if package not in debs]
    if missing:
        raise RecipeError(f"apt names no file for package {missing[0]}; {REMEDY}")
    return [debs[package] for package in packages]


def fetch(debs: Sequence[Deb], folder: Path, tick: Callable[[], None]) -> None:
    """Makes each file be there whole. One that is, from an earlier run, isn't fetched again."""
    for deb in debs:
        path = folder / deb.file
        if not _is_whole(path, deb):
            result = _apt(["download", deb.package], folder)
            if result.returncode:
                raise RecipeError(f"package {deb.package}: {_complaint(result)}; {REMEDY}")
            if not _is_whole(path, deb):
                path.unlink(missing_ok=True)
                raise RecipeError(f"package {deb.package}: {path} isn't what apt's lists say; run again")
        tick()


def _is_whole(path: Path, deb: Deb) -> bool:
    if not path.is_file() or path.stat().st_size != deb.num_bytes:
        return False
    if len(deb.sha256) != 64:
        return True
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == deb.sha256


def unpack(deb: Deb, archive: Path, target: Path) -> Path:
    """Unpacks into `target`/package and returns that folder."""
    folder = target / deb.package
    folder.mkdir(parents=True)
    command = ["dpkg-deb", "-x", str(archive / deb.file), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RecipeError(f"{deb.file} can't be unpacked: {result.stderr.strip().splitlines()[0]}")
    return folder
