"""Functions that the YAML names as `module:function`, imported: runs the user's code."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataloader_svc.config.code_files import split_function
from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest

_DETAIL = 300


def import_function(name: str, base_dir: Path) -> Callable[..., Any]:
    """The function `module:function`; modules beside the YAML are found too. Raises ConfigError."""
    module_name, function_name = split_function(name)
    folder = str(base_dir.absolute())
    if folder not in sys.path:
        sys.path.append(folder)  # last: a `json.py` beside the YAML must not replace Python's own
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise or exit while it is imported
        raise ConfigError(f"{module_name} can't be imported: {described(error)}") from error
    found = getattr(module, function_name, None)
    if not callable(found):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        where = getattr(module, "__file__", None) or module_name
        raise ConfigError(
            f"{where} has no function {function_name!r}; functions: {', '.join(known[:20]) or 'none'}"
            f"{nearest(function_name, known)}"
        )
    function: Callable[..., Any] = found
    return function


def described(error: BaseException) -> str:
    """`ValueError: no title (clean.py:12 in strip_html)`, cut. Never raises, whatever the error is."""
    try:
        text = str(error)
    except Exception as second:  # __str__ is the stranger's too
        text = f"(its text can't be had: {type(second).__name__})"
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    where = "" if last is None else f" ({Path(last.filename).name}:{last.lineno} in {last.name})"
    return f"{type(error).__name__}: {text[:_DETAIL]}{where}"
