"""Where samples come from: formats, the index of their shards, and the order in which rows are read.

Importing the package registers the built-in formats. `SourceReader` is what a loader uses; `SOURCES` and the
records of `base` are what somebody needs who adds a format.
"""

from dataloader_svc.sources import (
    arrow,
    energon,
    huggingface,
    jsonl,
    lance,
    manifest,
    mds,
    parquet,
    webdataset,
)
from dataloader_svc.sources.base import SOURCES, Extent, Fields, FormatContext, Rows, ShardIndex, SourceFormat
from dataloader_svc.sources.index import SourceIndex, build_index
from dataloader_svc.sources.order import Order
from dataloader_svc.sources.reader import BlockSamples, SourceReader

__all__ = [
    "SOURCES",
    "BlockSamples",
    "Extent",
    "Fields",
    "FormatContext",
    "Order",
    "Rows",
    "ShardIndex",
    "SourceFormat",
    "SourceIndex",
    "SourceReader",
    "arrow",
    "build_index",
    "energon",
    "huggingface",
    "jsonl",
    "lance",
    "manifest",
    "mds",
    "parquet",
    "webdataset",
]
