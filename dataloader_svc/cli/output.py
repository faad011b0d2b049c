"""What all commands share: the configuration argument, `--json`, tables."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

F = TypeVar("F", bound=Callable[..., Any])

config_argument = click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


PIPE_WIDTH = 240
"""Columns where stdout is no terminal and COLUMNS says nothing: a row stays a line, for grep and files."""

LEAST_WIDTH = 80
"""A narrower terminal breaks our lines by itself, which loses nothing; rich would cut them."""

_LEAST_TEXT = 8  # columns that a text is folded to at most


def console() -> Console:
    """Where results go. Progress goes to `progress_console`, so that stdout stays clean for pipes."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = shutil.get_terminal_size().columns if known else PIPE_WIDTH
    return Console(highlight=False, width=max(width, LEAST_WIDTH))


def progress_console() -> Console:
    """Where progress and notes go: stderr."""
    return Console(stderr=True, highlight=False)


def progress_bars() -> Progress:
    """Bars on stderr that vanish when done; nothing at all where nobody watches."""
    shown = progress_console()
    return Progress(console=shown, transient=True, disable=not shown.is_terminal)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table; columns whose name begins with `>` hold numbers: right-aligned, and never cut or broken.

    Where the terminal is too narrow, texts fold onto further lines, and then the lines grow too long.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    result = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    least = 0
    for number, name in enumerate(columns):
        column = [name.lstrip(">"), *(row[number] for row in cells)]
        longest = max(cell_len(line) for cell in column for line in cell.split("\n"))
        width = longest if name.startswith(">") else _LEAST_TEXT
        least += width + 2
        justify: JustifyMethod = "right" if name.startswith(">") else "left"
        result.add_column(name.lstrip(">"), justify=justify, overflow="fold", min_width=width)
    result.min_width = least
    for row in cells:
        result.add_row(*map(Text, row))  # what a file holds in brackets is no markup
    return result


def examples(*lines: str) -> str:
    """An epilog of examples that click leaves as it is."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
