"""What crosses between machines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dataloader_svc.config.schema.model import Model

WireCompression = Literal["auto", "off", "zstd", "lz4"]


class Wire(Model):
    """How batches are sent to trainers that don't share memory with their constructor."""

    compression: WireCompression = Field(
        default="auto",
        description="Without loss, each field by itself. auto: where a link is so slow that encoding, sending"
        " and decoding take less time together than sending, by what was measured of all three. zstd, lz4: "
        "always. At both ends by the packages zstandard and lz4; a trainer without them is sent plain bytes.",
    )
