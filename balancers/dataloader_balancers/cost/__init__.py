"""Predicted work, by phase, from the sizes of documents, pictures and sounds.

Placement feels only ratios; the unit everywhere is 10^9 floating-point operations of a forward pass, of which
a backward pass is twice as much. `document.py` has the cost of text by its coefficients, `media.py` that of
pictures and sound; `shape.py` derives the coefficients from a language model's shape, `presets.py` lists
shapes, `huggingface.py` reads them from a `config.json`, and `function.py` takes a function of your own.
`calibrate` fits the seconds that a trainer really takes.
"""

from dataloader_balancers.cost.document import (
    CostModel,
    LlmCost,
    segment_sum,
    sequence_cost,
)
from dataloader_balancers.cost.function import CostFunctionError, FunctionCost
from dataloader_balancers.cost.huggingface import ConfigError, read_audio, read_llm, read_vision
from dataloader_balancers.cost.media import AudioCost, AudioShape, EncoderCost, VisionShape
from dataloader_balancers.cost.presets import PRESETS
from dataloader_balancers.cost.shape import Experts, LatentAttention, ModelShape

__all__ = [
    "PRESETS",
    "AudioCost",
    "AudioShape",
    "ConfigError",
    "CostFunctionError",
    "CostModel",
    "EncoderCost",
    "Experts",
    "FunctionCost",
    "LatentAttention",
    "LlmCost",
    "ModelShape",
    "VisionShape",
    "read_audio",
    "read_llm",
    "read_vision",
    "segment_sum",
    "sequence_cost",
]
