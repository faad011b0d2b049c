"""A step for the terminal. Pure: a `StepView` in, things that rich prints out.

What the data holds is made harmless first: a text may carry escape sequences, or brackets that rich would
take for markup.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dataloader_svc.cli.step_view import PieceView, SequenceView, StepView, colours

_TEXT_START = 400  # characters that are looked at; the table cuts to its own width
_LEAST_TEXT = 20


def step_lines(view: StepView, *, max_documents: int, width: int, bars: bool) -> Iterator[RenderableType]:
    """The whole output, part by part, in lines of `width` cells. `bars`: only where there are colours."""
    fill = view.tokens / view.capacity if view.capacity else 0.0
    yield Text(
        f"{view.job} step {view.step}: {len(view.sequences)} sequences, {view.documents:,} documents, "
        f"{view.tokens:,} of {view.capacity:,} tokens ({fill:.2%}), digest {view.digest[:12]}\n"
    )
    yield _sources(view)
    if view.skipped:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(view.skipped.items()))
        yield Text(f"passed over since the step before: {counts}")
    colour = colours([source.name for source in view.sources])
    for sequence in view.shown_sequences():
        yield Text(f"\n{headline(sequence, view)}", "bold")
        if bars:
            yield _bar(sequence, view.sequence_length, width, colour)
        yield _documents(sequence, max_documents, width, colour)
    if len(view.shown) < len(view.sequences):
        yield Text(f"\n{len(view.shown)} of {len(view.sequences)} sequences, evenly spread; -n shows more")


def headline(sequence: SequenceView, view: StepView) -> str:
    """`sequence 3: 8,190 of 8,192 tokens (99.98%), 5 documents, cost 0.98 of the mean`."""
    llm, encoder = view.relative_cost(sequence)
    count = len(sequence.pieces)
    return (
        f"sequence {sequence.number}: {sequence.tokens:,} of {view.sequence_length:,} tokens "
        f"({sequence.tokens / view.sequence_length:.2%}), {count} document{'' if count == 1 else 's'}, "
        f"cost {llm:.2f} of the mean" + (f", encoder {encoder:.2f}" if encoder else "")
    )


def one_line(text: str, width: int = _TEXT_START) -> str:
    """The start of a text in one line: white space as one space, what is not printable as a dot."""
    text = text.lstrip()
    start = " ".join(text[: 2 * width].split())
    line = "".join(char if char.isprintable() else "\N{MIDDLE DOT}" for char in start)
    return (
        line
        if len(line) <= width and len(text) <= 2 * width
        else f"{line[: width - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def _sources(view: StepView) -> Table:
    rows = Table(box=None, pad_edge=False)
    rows.add_column("source")
    for name in ("target", f"{view.unit} of this step", "tokens", "samples"):
        rows.add_column(name, justify="right")
    for source in view.sources:
        share = (f"{source.target:.1%}", f"{view.share(source):.1%}")
        rows.add_row(source.name, *share, f"{source.tokens:,}", f"{source.samples:,}")
    return rows


def _bar(sequence: SequenceView, sequence_length: int, width: int, colour: dict[str, str]) -> Text:
    """Each cell shows the document that has its middle; neighbours differ in shade."""
    bar = Text()
    ends = []
    at = 0
    for piece in sequence.pieces:
        at += piece.key.length
        ends.append(at)
    number = 0
    for cell in range(width):
        middle = (cell + 0.5) * sequence_length / width
        while number < len(ends) and ends[number] <= middle:
            number += 1
        if number == len(ends):
            bar.append("\N{MIDDLE DOT}", "dim")
        else:
            style = colour[sequence.pieces[number].key.source]
            bar.append("\N{FULL BLOCK}" if number % 2 == 0 else "\N{DARK SHADE}", style)
    return bar


def _documents(
    sequence: SequenceView, max_documents: int, width: int, colour: dict[str, str]
) -> RenderableType:
    rows = Table(box=None, pad_edge=False)
    pieces = sequence.pieces[:max_documents]
    names = [piece.name for piece in pieces]
    longest = max([len("document"), *map(cell_len, names)])
    rows.add_column("document", no_wrap=True, min_width=longest)
    rows.add_column("tokens", justify="right", no_wrap=True, min_width=len("99,999"))
    rows.add_column("text", no_wrap=True)
    for piece, name in zip(pieces, names, strict=True):
        start = Text(_start(piece))
        start.truncate(max(width - longest - len("99,999") - 4, _LEAST_TEXT), overflow="ellipsis")
        rows.add_row(Text(name, colour[piece.key.source]), f"{piece.key.length:,}", start)
    left = len(sequence.pieces) - max_documents
    return rows if left <= 0 else Group(rows, Text(f"... and {left} more", "dim"))


def _start(piece: PieceView) -> str:
    return one_line(piece.content.text()) if piece.content is not None else ""
