"""What all commands share: the configuration argument, `--json`, tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])

config_argument = click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def console() -> Console:
    """Where results go. Progress goes to `progress_console`, so that stdout stays clean for pipes."""
    return Console(highlight=False)


def progress_console() -> Console:
    """Where progress and notes go: stderr."""
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table; columns whose name begins with `>` are right-aligned."""
    result = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        result.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        result.add_row(*(str(cell) for cell in row))
    return result


def examples(*lines: str) -> str:
    """An epilog of examples that click leaves as it is."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
