"""Options of what a registry holds (formats, transforms): checked by the model of whoever takes them.

The schema can't know these models, since a third party may bring one; so they are checked when the thing is
made, and the error is worded here like the schema's own. Knows no registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest

Options = TypeVar("Options", bound=Model)


def checked_options(model: type[Options], values: Mapping[str, object], owner: str) -> Options:
    """`values` as `model`. Raises ConfigError that names the option; `owner`: "format", "transform"."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        known = sorted(model.model_fields)
        found = error.errors()
        # A name that is wrong explains the one that is missing.
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            allowed = (
                f"known: {', '.join(known)}{nearest(name, known)}" if known else f"this {owner} has none"
            )
            raise ConfigError(f"unknown option {name!r}; {allowed}") from None
        message = str(first["msg"]).removeprefix("Value error, ")
        shown = "" if first["type"] == "missing" else f", found {first['input']!r}"
        raise ConfigError(f"{name + ': ' if name else ''}{message}{shown}") from None
