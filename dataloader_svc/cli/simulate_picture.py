"""The report of `simulate` as a picture, or as one HTML page that holds it and needs nothing else.

The only file that knows matplotlib (extra `report`).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2

from dataloader_svc import __version__
from dataloader_svc.cli.simulate_view import Section
from dataloader_svc.errors import ConfigError

_COLOURS = ("#33658a", "#86bbd8", "#f6ae2d", "#758e4f", "#f26419")
_WIDTH, _BAR, _HEAD = 9.0, 0.16, 1.3  # inches


def write_report(path: Path, sections: Sequence[Section]) -> None:
    """Write `.png` or `.html`, whole or not at all. ConfigError where matplotlib is not installed, or the
    file can't be written.
    """
    picture = draw(sections)
    if path.suffix == ".html":
        page = _page(sections, picture).encode()
    else:
        page = picture
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.write_bytes(page)
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}") from None


def draw(sections: Sequence[Section]) -> bytes:
    """A PNG: a panel a section, a bar a strategy and figure, and the floor of each figure as a line."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--out: pictures need matplotlib ({error.name} is missing): pip install 'dataloader-svc[report]'"
        ) from None
    heights = [_HEAD + _BAR * sum(len(bars) + 1 for bars in section.bars.values()) for section in sections]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(sections), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, section in zip(panels, sections, strict=True):
        _panel(panel, section)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    return buffer.getvalue()


def _panel(panel: object, section: Section) -> None:
    from matplotlib.axes import Axes

    assert isinstance(panel, Axes)
    names = list(section.bars)
    figures = list(next(iter(section.bars.values())))
    height = 1.0 / (len(figures) + 1)
    for number, figure in enumerate(figures):
        places = [at + number * height for at in range(len(names))]
        values = [section.bars[name][figure] for name in names]
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = panel.barh(
            places, [value - 1 for value in values], height, left=1, label=figure, color=colour
        )
        panel.bar_label(drawn, [f"{value:.2f}" for value in values], padding=2, fontsize=6)
        if figure in section.floors:
            panel.axvline(section.floors[figure], color=colour, linestyle=":", linewidth=1)
    panel.set_yticks([at + (len(figures) - 1) * height / 2 for at in range(len(names))], names)
    panel.invert_yaxis()
    panel.set_xlim(left=1)
    panel.margins(x=0.08)
    panel.set_title(section.title, loc="left", fontsize=9)
    panel.set_xlabel("over equal work (1 is even); dotted: the floor", fontsize=8)
    panel.tick_params(labelsize=8)
    panel.legend(fontsize=7, loc="lower right")
    panel.spines[["top", "right"]].set_visible(False)


def _page(sections: Sequence[Section], picture: bytes) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = files("dataloader_svc.cli").joinpath("simulate.html").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        sections=sections, picture=base64.b64encode(picture).decode(), version=__version__
    )
