"""Which file a `module:function` of the YAML lies in: what a digest must cover. Imports nothing of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def split_function(name: str) -> tuple[str, str]:
    """(module, function) of `module:function`. ValueError for anything else."""
    module, colon, function = name.partition(":")
    parts = [*module.split("."), function]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ValueError("expected MODULE:FUNCTION, such as mypackage.clean:strip_html")
    return module, function


def module_file(module: str, base_dir: Path) -> Path | None:
    """The file of a module, as Python finds it, or in `base_dir`; None where there is none.

    Only the search for the outermost package is Python's: it runs no code, which a search inside would.
    """
    first, *rest = module.split(".")
    folders: list[Path] = [base_dir]
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = None
    if spec is not None:
        if not rest:
            return None if spec.origin is None else _existing(Path(spec.origin))
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    else:
        rest = [first, *rest]
    for folder in folders:
        place = folder.joinpath(*rest)
        found = _existing(place / "__init__.py") or _existing(place.with_suffix(".py"))
        if found is not None:
            return found
    return None


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None
