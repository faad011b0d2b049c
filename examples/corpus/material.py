"""What the corpus takes out of unpacked packages: spoken captions, pages with pictures, long and short texts.

Each function reads one package's folder and yields rows in a stable order. Knows nothing of how rows are
stored; `make_corpus.py` does.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

MARKER = "<image>"
"""Where a page's next picture belongs; the service's default marker."""


@dataclass(frozen=True, slots=True)
class Triple:
    """A stamp, what it shows in one language, and somebody saying it."""

    picture: Path
    sound: Path
    caption: str
    language: str


@dataclass(frozen=True, slots=True)
class Page:
    """Text with a marker for each picture, and the pictures in that order."""

    name: str
    text: str
    pictures: tuple[Path, ...]


def stamps(root: Path) -> list[list[Triple]]:
    """For each stamp of Tux Paint with a caption file: its triples, one for each language that is spoken."""
    found: list[list[Triple]] = []
    for text in sorted(root.rglob("*.txt")):
        picture = text.with_suffix(".png")
        if not picture.is_file():
            continue
        captions = _captions(text)
        triples = [
            Triple(picture, sound, captions[language], language)
            for language in sorted(captions)
            if (sound := _spoken(text, language)) is not None
        ]
        if triples:
            found.append(triples)
    return found


def _captions(file: Path) -> dict[str, str]:
    """The first line is English; the others are `language.utf8=caption`."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    captions = {"en": lines[0].strip()} if lines else {}
    for line in lines[1:]:
        language, separator, caption = line.partition(".utf8=")
        if separator and caption.strip():
            captions[language] = caption.strip()
    return {language: caption for language, caption in captions.items() if caption}


def _spoken(text: Path, language: str) -> Path | None:
    suffix = "_desc.ogg" if language == "en" else f"_desc_{language}.ogg"
    sound = text.with_name(text.stem + suffix)
    return sound if sound.is_file() else None


BLOCKS = {"p", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "dt", "dd", "table", "ul", "ol"}
VOID = {"img", "br", "hr", "meta", "link", "input", "col", "area", "base", "wbr"}
UNREAD = {"script", "style", "head", "nav"}
NAVIGATION = {"navheader", "navfooter", "docnav", "toc"}


@dataclass(slots=True)
class _Open:
    tag: str
    unread: bool


class PageReader(HTMLParser):
    """HTML to text with markers. Menus, scripts and heads are left out; `pre` keeps its line breaks."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sources: list[str] = []
        self._pieces: list[str] = []
        self._open: list[_Open] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img":
            self._picture(values.get("src") or "")
        if tag in BLOCKS or tag == "br":
            self._pieces.append("\n")
        if tag not in VOID:
            classes = set((values.get("class") or "").split())
            self._open.append(_Open(tag, self._skips() or tag in UNREAD or bool(classes & NAVIGATION)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        # Up to the tag that is closed: `<li>` and `<p>` are often left open.
        if any(element.tag == tag for element in self._open):
            while self._open.pop().tag != tag:
                pass
        if tag in BLOCKS:
            self._pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if self._skips():
            return
        # A page that speaks of the marker itself must not gain a picture.
        data = data.replace(MARKER, "< image >")
        kept = any(element.tag == "pre" for element in self._open)
        self._pieces.append(data if kept else re.sub(r"\s+", " ", data))

    def _skips(self) -> bool:
        return bool(self._open) and self._open[-1].unread

    def _picture(self, source: str) -> None:
        if source and not self._skips():
            self.sources.append(source)
            self._pieces.append(f"\n{MARKER}\n")

    def text(self) -> str:
        lines = [line.rstrip() for line in "".join(self._pieces).split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def html_page(file: Path, root: Path) -> Page:
    """One page. A picture that isn't a PNG or JPEG on disk, or belongs to the layout, loses its marker."""
    reader = PageReader()
    reader.feed(file.read_text(encoding="utf-8", errors="replace"))
    reader.close()
    pictures: list[Path] = []
    pieces = reader.text().split(MARKER)
    text = pieces[0]
    for source, piece in zip(reader.sources, pieces[1:], strict=True):
        path = file.parent / source.split("#")[0]
        usable = path.suffix.lower() in (".png", ".jpg", ".jpeg") and "Common_Content" not in path.parts
        if usable and path.is_file():
            pictures.append(path)
            text += MARKER + piece
        else:
            text += piece
    return Page(str(file.relative_to(root)), re.sub(r"\n{3,}", "\n\n", text).strip(), tuple(pictures))


def html_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.html") if path.is_file() and not path.is_symlink())


def manual_pages(root: Path) -> Iterator[tuple[str, str]]:
    """(name, source) of each page in roff as it is kept, without the comments and the mere redirections."""
    for file in sorted(root.rglob("man/**/*.gz")):
        if file.is_symlink():
            continue
        source = gzip.decompress(file.read_bytes()).decode("utf-8", errors="replace")
        lines = [line for line in source.splitlines() if not re.match(r"['.]\s*\\\"", line)]
        body = "\n".join(lines).strip()
        if body and not body.startswith(".so "):
            yield file.stem, body


def plain_files(root: Path, pattern: str) -> Iterator[tuple[str, str]]:
    for file in sorted(root.rglob(pattern)):
        text = file.read_text(encoding="utf-8", errors="replace").strip()
        if text:
            yield str(file.relative_to(root)), text


def fortunes(root: Path) -> Iterator[tuple[str, str]]:
    """(file, saying): sayings stand between lines of one percent sign."""
    for file in sorted((root / "usr/share/games/fortunes").iterdir()):
        if file.is_symlink() or file.suffix or not file.is_file():
            continue
        for saying in re.split(
            r"^%\n", file.read_text(encoding="utf-8", errors="replace"), flags=re.MULTILINE
        ):
            if saying.strip():
                yield file.name, saying.strip()


@dataclass(frozen=True, slots=True)
class Background:
    picture: Path
    caption: str


def backgrounds(root: Path) -> list[Background]:
    """The desktop backgrounds that are WebP, up to 4096 x 4096."""
    found: list[Background] = []
    for picture in sorted((root / "usr/share/backgrounds").rglob("*.webp")):
        stem, _, shade = picture.stem.rpartition("-")
        version = {"d": "dark", "l": "light"}.get(shade, shade)
        found.append(Background(picture, f"The desktop background {stem!r} of GNOME, its {version} version."))
    return found
