"""The cost models that a configuration asks for. Reads the files and imports the functions that it names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dataloader_balancers import CostFunctionError, CostModel, EncoderCost, FunctionCost, LlmCost
from dataloader_balancers.cost import ConfigError as ShapeError
from dataloader_balancers.cost import read_llm, read_vision
from dataloader_svc.config.code_import import import_function
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import ConfigError
from dataloader_svc.planner.pieces import Pieces

Shape = TypeVar("Shape")


class CostError(ConfigError):
    """A cost that can't be had. place: keys from the top; what: the sentence alone."""

    def __init__(self, place: tuple[str, ...], what: str) -> None:
        super().__init__(f"{'.'.join(place)}: {what}")
        self.place, self.what = place, what


_LLM, _ENCODER = ("strategy", "cost", "llm"), ("strategy", "cost", "encoder")
_DEFAULT_MODEL = "7b"
_DEFAULT_PATCH = 1.0


@dataclass(frozen=True, slots=True)
class MediaCost:
    """Of what a piece holds for the encoders: its patches, and `per_frame` for each mel frame of its sound.

    A clip of sound is at most `audio.max_seconds` long, so a constant for each frame serves.
    """

    patches: EncoderCost | FunctionCost
    per_frame: float

    def of_pieces(self, pieces: Pieces) -> NDArray[np.float64]:
        """float64 (n,)."""
        return self.patches.of_patches(pieces.patches) + self.per_frame * pieces.frames


def llm_cost(config: Config, base_dir: Path = Path()) -> CostModel:
    """The cost of a document. `base_dir`: the folder that relative paths start from.

    Raises CostError: no such preset, file, function, or one that is none.
    """
    cost = config.strategy.cost.llm
    if cost.config is not None:
        return _shape(base_dir / cost.config, (*_LLM, "config"), read_llm).cost
    if cost.function is not None:
        return _function(cost.function, base_dir, (*_LLM, "function"))
    if cost.linear is not None or cost.quadratic is not None:
        return LlmCost(cost.linear or 0.0, cost.quadratic or 0.0)
    try:
        return LlmCost.preset(cost.model or _DEFAULT_MODEL)
    except ValueError as error:
        raise CostError((*_LLM, "model"), str(error)) from None


def encoder_cost(config: Config, base_dir: Path = Path()) -> EncoderCost | FunctionCost:
    """The cost of an item's patches. Raises CostError as `llm_cost` does.

    A plan knows the patches of an item, not of each of its pictures: of an encoder with a shape, a patch
    costs what it does in a picture of `images.max_pixels`.
    """
    cost = config.strategy.cost.encoder
    if cost.function is not None:
        return _function(cost.function, base_dir, (*_ENCODER, "function"))
    if cost.config is not None:
        shape = _shape(base_dir / cost.config, (*_ENCODER, "config"), read_vision)
        return shape.cost.linearised(max(config.images.max_pixels // config.images.patch**2, 1))
    return EncoderCost(_DEFAULT_PATCH if cost.patches is None else cost.patches)


def media_cost(config: Config, base_dir: Path = Path()) -> MediaCost:
    """The cost of a piece's media in their encoders. Raises CostError as `llm_cost` does."""
    return MediaCost(encoder_cost(config, base_dir), config.strategy.cost.encoder.frames)


def _shape(path: Path, place: tuple[str, ...], read: Callable[[Mapping[str, Any]], Shape]) -> Shape:
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict):
            raise ShapeError("it holds no JSON object")
        return read(values)
    except OSError as error:
        raise CostError(place, f"{path} can't be read: {error.strerror or error}") from None
    except ShapeError as error:
        raise CostError(place, f"{path}: {error}") from None
    except ValueError as error:  # of json, also for what is no text
        raise CostError(place, f"{path} is no JSON: {error}") from None


def _function(name: str, base_dir: Path, place: tuple[str, ...]) -> FunctionCost:
    try:
        return FunctionCost(import_function(name, base_dir), name)
    except (ConfigError, CostFunctionError) as error:
        raise CostError(place, str(error)) from None
