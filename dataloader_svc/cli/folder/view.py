"""What a survey of a folder found, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from rich.console import Console

from dataloader_svc.cli.folder.survey import NO_ROW, BadPlace, FileReport, FolderReport
from dataloader_svc.cli.output import table

SHOWN = 3
"""Bad rows of a file that are listed for each reason, unless all are wanted."""

_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"
_FILES = ("file", "format", ">rows", ">fine", ">bad", ">media", "why")
_BAD = ("file", "row", "field", "reason", "what")
_NOT_READ = ("files", ">how many", "why", "first of them")


def as_json(report: FolderReport) -> dict[str, Any]:
    """One object."""
    return {
        "ok": is_good(report),
        "files": [
            {
                "file": each.file,
                "format": each.format,
                "rows": each.rows,
                "fine": each.fine,
                "bad": dict(each.bad),
                "media": each.media,
                "error": each.error,
                "notes": [*each.notes, *_notes(each)],
                "places": [_place(place) for place in each.places],
            }
            for each in report.files
        ],
        "not_read": [{"file": each.path, "why": each.why} for each in report.not_read],
    }


def is_good(report: FolderReport) -> bool:
    """Whether there is something, and nothing is wrong with any of it."""
    return bool(report.files) and all(each.is_good for each in report.files)


def print_report(out: Console, report: FolderReport) -> None:
    """Tables: by file, the bad rows that are kept, and what is no data."""
    if report.files:
        out.print(table("", _FILES, [_file_row(each) for each in report.files]))
    if any(each.places for each in report.files):
        rows = [_bad_row(place) for each in report.files for place in each.places]
        out.print()
        out.print(table("What a job would not take", _BAD, rows))
    if report.not_read:
        out.print()
        out.print(table("Not read", _NOT_READ, _not_read_rows(report)))
    for each in report.files:
        for note in (*each.notes, *_notes(each)):
            shown = note if note.startswith(each.file) else f"{each.file}: {note}"
            out.print(printable(f"note: {shown}"), markup=False, soft_wrap=True)
    out.print(f"\n{_verdict(report)}", markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """Without bytes of a file name that are no UTF-8, and without what a terminal would obey."""
    clean = text.encode("utf-8", "replace").decode()
    return "".join(char if char.isprintable() or char == "\n" else _UNPRINTABLE for char in clean)


def _file_row(each: FileReport) -> list[str]:
    numbers = [f"{count:,}" for count in (each.rows, each.fine, each.bad.total(), each.media)]
    why = each.error or ", ".join(f"{reason} {count:,}" for reason, count in each.bad.most_common())
    if each.error is not None:
        numbers = ["-"] * len(numbers)
    return [printable(cell) for cell in (each.file, each.format, *numbers, why)]


def _bad_row(place: BadPlace) -> list[str]:
    row = "" if place.row == NO_ROW else str(place.row)
    return [printable(cell) for cell in (place.file, row, place.field, place.reason, place.detail)]


def _not_read_rows(report: FolderReport) -> Iterator[list[str]]:
    """By suffix and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in report.not_read:
        suffix = PurePath(each.path).suffix
        groups.setdefault((f"*{suffix}" if suffix else "without suffix", each.why), []).append(each.path)
    for (name, why), paths in groups.items():
        yield [printable(cell) for cell in (name, f"{len(paths):,}", why, paths[0])]


def _notes(each: FileReport) -> Iterator[str]:
    if each.remote:
        yield f"{each.remote:,} media lie at addresses of the web, and were not fetched"
    missing = each.bad.total() - len(each.places)
    if missing > 0:
        yield f"{missing:,} more bad rows; --all lists them"


def _verdict(report: FolderReport) -> str:
    if not report.files:
        return "no file that any format or decoder here reads"
    unusable = sum(each.error is not None for each in report.files)
    bad: Counter[str] = Counter()
    for each in report.files:
        bad.update(each.bad)
    rows = sum(each.rows for each in report.files)
    if not unusable and not bad:
        return f"all {rows:,} rows and files of media are fine"
    parts = []
    if bad:
        parts.append(f"{bad.total():,} of {rows:,} rows and files of media are bad")
    if unusable:
        parts.append("1 file can't be used" if unusable == 1 else f"{unusable} files can't be used")
    return "; ".join(parts)


def _place(place: BadPlace) -> dict[str, Any]:
    return place._asdict() | {"row": None if place.row == NO_ROW else place.row}
