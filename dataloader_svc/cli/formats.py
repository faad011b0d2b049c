"""`dataloader-svc formats`: what can be read here, with the options of each format."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import Any

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dataloader_svc.cli.output import console, examples, json_option, print_json, table
from dataloader_svc.sources import SOURCES, SourceFormat

_BUILT_IN = "dataloader_svc.sources."


@dataclass(frozen=True, slots=True)
class Option:
    """What may stand under `options:`. A default of `required` means that there is none."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True, slots=True)
class Format:
    """A registered format. `origin`: the module it comes from; `page`: where a built-in one is described."""

    name: str
    description: str
    suffixes: tuple[str, ...]
    options: tuple[Option, ...]
    origin: str
    page: str | None


@click.command(epilog=examples("dataloader-svc formats", "dataloader-svc formats parquet --json"))
@click.argument("name", required=False)
@json_option
def command(name: str | None, *, as_json: bool) -> None:
    """List the formats that can be read: those of this package, and those of others that are installed.

    With NAME, that one alone.
    """
    names = SOURCES.names() if name is None else [name]
    found = [describe(each, SOURCES.get(each)) for each in names]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    out = console()
    rows = [
        (each.name, " ".join(each.suffixes), each.description, each.page or each.origin) for each in found
    ]
    out.print(table("", ("format", "files", "what it reads", "more"), rows))
    options = [
        (each.name, option.name, option.type, option.default, option.description)
        for each in found
        for option in each.options
    ]
    if options:
        out.print()
        out.print(table("Options", ("format", "option", "type", "default", "meaning"), options))
    elif name is not None:
        out.print(f"\n{name} has no options", markup=False)


def describe(name: str, made: type[SourceFormat]) -> Format:
    """What a format's class says of itself."""
    text = inspect.cleandoc(made.__doc__ or "").partition("\n")[0]
    options = tuple(_option(key, info) for key, info in made.Options.model_fields.items())
    built_in = made.__module__.startswith(_BUILT_IN)
    page = f"docs/formats/{name}.md" if built_in else None
    return Format(name, text, made.suffixes, options, made.__module__, page)


def _option(name: str, info: FieldInfo) -> Option:
    default: Any = info.get_default(call_default_factory=True)
    shown = "required" if default is PydanticUndefined else "none" if default is None else str(default)
    kind: Any = info.annotation
    plain = isinstance(kind, type) and not getattr(kind, "__args__", ())
    return Option(
        name, kind.__name__ if plain else str(kind).replace("typing.", ""), shown, info.description or ""
    )
