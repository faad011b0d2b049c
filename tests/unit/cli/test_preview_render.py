"""The page and the table: everything is shown, and data can make neither browser nor terminal do anything."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dataloader_svc.cli.contents import read_contents
from dataloader_svc.cli.preview_page import bars, data_uri, render_page
from dataloader_svc.cli.preview_table import one_line, step_lines
from dataloader_svc.cli.step_view import PieceView, SequenceView, StepView, shares
from dataloader_svc.sample import RowRef
from dataloader_svc.testing.tokenizer import EOS
from dataloader_svc.transforms.tokenizers import Tokenizer
from tests.unit.cli.batches import MEL, RULE, batch_of, document, picture, sound

EVIL = (
    "</span><script>alert(1)</script><img src=http://example.com/x onerror=alert(2)> "
    "[bold]b[/bold] \x1b[31mred"
)
LENGTH = 400


class Page(HTMLParser):
    """Tags with attributes, and the text inside `.text` blocks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[str, str]] = []
        self._class = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._class = dict(attrs).get("class") or ""

    def handle_endtag(self, tag: str) -> None:
        self._class = ""

    def handle_data(self, data: str) -> None:
        self.words.append((self._class, data))


@pytest.fixture(scope="module")
def view(tokenizer: Tokenizer) -> StepView:
    eos = tokenizer.control[EOS]
    documents = [
        document(tokenizer, "captions", 2, picture(16, 32), "a noisy picture", eos),
        document(tokenizer, "web", 0, EVIL, eos),
        document(tokenizer, "chat", 5, ("asked", False), "answered", eos),
        document(tokenizer, "clips", 1, picture(8, 8, frames=20), "a clip", eos),
    ]
    content = read_contents([batch_of(*documents)], {d.key for d in documents}, tokenizer, RULE, MEL)
    pieces = tuple(
        PieceView(d.key, row=RowRef(f"/data/{d.key.source}.parquet", 7), content=content[d.key])
        for d in documents
    )
    sequences = (
        SequenceView(0, pieces, 2.0, 1.0),
        SequenceView(1, (PieceView(pieces[1].key._replace(position=9)),), 1.0, 0.0),
    )
    counted = shares(sequences, ["captions", "chat", "clips", "web"], [0.25] * 4)
    return StepView("job", 0, "ab" * 16, LENGTH, "tokens", sequences, (0,), counted, {"not_media": 3})


@pytest.fixture(scope="module")
def page(view: StepView) -> str:
    return render_page(view, version="1.2.3", source_file="mixture.yaml")


def test_data_can_make_the_page_run_and_load_nothing(page: str) -> None:
    parsed = Page(page)
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "srcset", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/", "#")), (tag, value)
    policies = [a["content"] for tag, a in parsed.tags if tag == "meta" and "http-equiv" in a]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_texts_are_there_as_they_were(page: str, view: StepView) -> None:
    shown = "".join(text for kind, text in Page(page).words if kind.split()[-1:] in (["on"], ["off"]))
    for content in view.shown_contents():
        for part in content.parts:
            if hasattr(part, "text"):
                assert part.text in shown


def test_masked_text_is_dimmed_and_trained_text_is_not(page: str) -> None:
    words = Page(page).words
    assert ("off", "asked") in words
    assert ("on", "answered") in words
    assert ("control on", EOS) in words


def test_every_link_leads_somewhere(page: str) -> None:
    tags = Page(page).tags
    identifiers = [a["id"] for _, a in tags if a.get("id")]
    assert len(identifiers) == len(set(identifiers))
    links = {(a["href"] or "").removeprefix("#") for tag, a in tags if tag == "a"}
    assert links == {"s0", "s0-0", "s0-1", "s0-2", "s0-3"}
    assert links <= set(identifiers)


def test_pictures_and_a_strip_of_at_most_sixteen_frames(page: str) -> None:
    images = [a["src"] or "" for tag, a in Page(page).tags if tag == "img"]
    assert len(images) == 1 + 16
    assert decoded(images[0]).shape == (16, 32, 3)
    assert "image 32x16: 8 tokens" in page
    assert "video 20 x 8x8: 20 tokens" in page


def test_a_page_keeps_to_its_size(view: StepView) -> None:
    small = render_page(view, version="1", source_file="x", max_bytes=500)
    assert small.count("no room left for pictures") == 2
    assert "<img" not in small
    assert "image 32x16: 8 tokens" in small


def test_bars_are_proportional_to_tokens(view: StepView) -> None:
    sequence = view.sequences[0]
    drawn = bars(sequence, LENGTH)
    assert sum(bar.width for bar in drawn) == pytest.approx(100 * sequence.tokens / LENGTH)
    at = 0
    for bar, piece in zip(drawn, sequence.pieces, strict=True):
        assert bar.left == pytest.approx(100 * at / LENGTH)
        at += piece.key.length
    ((left, width),) = drawn[0].media
    assert left == 0
    assert width == pytest.approx(100 * 8 / sequence.pieces[0].key.length)


def test_the_summary(page: str) -> None:
    text = " ".join("".join(text for _, text in Page(page).words).split())
    assert "job step 0" in text
    assert "1 + 1pictures + clips" in text
    assert "All 2 sequences" in text
    assert "3 not_media" in text
    assert "/data/web.parquet:7" in text


def decoded(uri: str) -> np.ndarray:
    kind, _, data = uri.partition(";base64,")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert kind == f"data:image/{(image.format or '').lower()}"
    return np.asarray(image.convert("RGB"))


def test_flat_pictures_are_kept_exactly_and_photographs_small() -> None:
    flat = np.full((40, 60, 3), (200, 30, 60), np.uint8)
    assert np.array_equal(decoded(data_uri(flat, 100)), flat)
    smooth = np.linspace(0, 255, 300 * 200 * 3).reshape(300, 200, 3).astype(np.uint8)
    shown = decoded(data_uri(smooth, 100))
    assert shown.shape == (100, 67, 3)


def printed(view: StepView, **options: int) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    for line in step_lines(view, **{"max_documents": 12, "width": 120, "bars": False, **options}):
        console.print(line)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_text_can_do_nothing_to_the_terminal(view: StepView) -> None:
    out = printed(view)
    assert "\x1b" not in out
    assert "[bold]b[/bold]" in out
    assert "[image 32x16: 8 tokens]a noisy picture" in out


def test_the_table(view: StepView) -> None:
    out = printed(view, max_documents=3)
    assert "sequence 0: " in out
    assert "cost 1.33 of the mean, encoder 2.00" in out
    assert "... and 1 more" in out
    assert "1 of 2 sequences" in out
    assert re.search(r"captions/0/2\s+\d+", out)
    assert "passed over since the step before: 3 not_media" in out


def test_lines_keep_to_the_width(view: StepView) -> None:
    rows = re.findall(r"^\w+/0/\d.*$", printed(view, width=60), re.MULTILINE)
    assert len(rows) == 4
    assert max(len(row) for row in rows) == 60
    assert sum(row.endswith("\N{HORIZONTAL ELLIPSIS}") for row in rows) >= 2


def test_the_bar_of_a_terminal_shows_each_document(view: StepView) -> None:
    out = printed(view, width=80, bars=True)
    line = next(line for line in out.splitlines() if "\N{FULL BLOCK}" in line)
    assert len(line) == 80
    first = view.sequences[0].pieces[0].key.length
    assert abs(line.index("\N{DARK SHADE}") - 80 * first / LENGTH) <= 1
    assert line.endswith("\N{MIDDLE DOT}") == (view.sequences[0].tokens < LENGTH - LENGTH / 80)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n\n b\tc", "a b c"),
        ("x\x00\x1b[31m\u202ey", "x··[31m·y"),
        ("abcdefghij", "abcdefghij"),
        ("abcdefghijk", "abcdefghi…"),
        ("\n" * 50 + "far", "far"),
        ("near" + " " * 50 + "far", "near…"),
    ],
)
def test_one_line(text: str, line: str) -> None:
    assert one_line(text, 10) == line


def test_sound_is_drawn_and_counted(tokenizer: Tokenizer) -> None:
    made = document(tokenizer, "speech", 1, "said: ", sound(40), tokenizer.control[EOS])
    content = read_contents([batch_of(made)], {made.key}, tokenizer, RULE, MEL)[made.key]
    sequence = SequenceView(0, (PieceView(made.key, frames=40, content=content),), 1.0, 1.0)
    counted = shares([sequence], ["speech"], [1.0])
    view = StepView("job", 0, "ab" * 16, LENGTH, "tokens", (sequence,), (0,), counted, {})
    page = Page(render_page(view, version="1", source_file="job.yaml"))
    (drawn,) = [attributes for tag, attributes in page.tags if tag == "img"]
    assert drawn["alt"] == "audio 0.40 s: 10 tokens"
    data = base64.b64decode(str(drawn["src"]).partition(",")[2])
    assert Image.open(io.BytesIO(data)).size == (40, 8)
    assert ("", "clips of sound") in page.words
