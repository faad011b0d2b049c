"""What all models of a configuration share: strictness, and sizes in bytes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_size(value: object) -> object:
    """`"64MiB"` -> 67108864; numbers pass through. Raises ValueError with the allowed units."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", value)
    if match is None or match[2].lower() not in _SIZES:
        raise ValueError("expected a size such as 512MiB or 4GiB (KiB, MiB, GiB, KB, MB, GB)")
    return int(float(match[1]) * _SIZES[match[2].lower()])


Bytes = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class Model(BaseModel):
    """Frozen, and an unknown field is an error: a typing mistake must not become a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
