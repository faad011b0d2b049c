"""The YAML of a job as frozen models: the one place where defaults live.

Knows nothing of files (`load.py` reads them) nor of what the values do; `cross.py` holds them against each
other. Field descriptions are the reference that `docs/configuration.md` is generated from, so they are
written for the person who configures. A default that was measured or taken from somewhere says so.
"""

from dataloader_svc.config.schema.adaptive import Adaptive
from dataloader_svc.config.schema.batch import BatchUnit, GlobalBatch, Mixture, MixtureStep
from dataloader_svc.config.schema.evaluation import Evaluation
from dataloader_svc.config.schema.fields import AudioFields, Interleaved, Preference, VideoFields
from dataloader_svc.config.schema.job import FIELDS_ALONE, Config
from dataloader_svc.config.schema.model import Bytes, Model, parse_size
from dataloader_svc.config.schema.roles import Constructor, Loader, Planner
from dataloader_svc.config.schema.security import Security, Tls
from dataloader_svc.config.schema.source import Shuffle, Source
from dataloader_svc.config.schema.storage import StorageSettings
from dataloader_svc.config.schema.strategy import (
    Cost,
    EncoderCostConfig,
    Limits,
    LlmCostConfig,
    Mesh,
    Ranks,
    Strategy,
    Wait,
)
from dataloader_svc.config.schema.tokens import (
    Images,
    Markers,
    MediaTokens,
    Mel,
    TokenizerBackend,
    TokenizerOptions,
)
from dataloader_svc.config.schema.wire import Wire, WireCompression

__all__ = [
    "FIELDS_ALONE",
    "Adaptive",
    "AudioFields",
    "BatchUnit",
    "Bytes",
    "Config",
    "Constructor",
    "Cost",
    "EncoderCostConfig",
    "Evaluation",
    "GlobalBatch",
    "Images",
    "Interleaved",
    "Limits",
    "LlmCostConfig",
    "Loader",
    "Markers",
    "MediaTokens",
    "Mel",
    "Mesh",
    "Mixture",
    "MixtureStep",
    "Model",
    "Planner",
    "Preference",
    "Ranks",
    "Security",
    "Shuffle",
    "Source",
    "StorageSettings",
    "Strategy",
    "Tls",
    "TokenizerBackend",
    "TokenizerOptions",
    "VideoFields",
    "Wait",
    "Wire",
    "WireCompression",
    "parse_size",
]
