"""Tiny Hugging Face dataset folders, of parquet files."""

from __future__ import annotations

from dataloader_svc.testing.data import WRITERS, ParquetWriter


@WRITERS.register("huggingface")
class HuggingFaceWriter(ParquetWriter):
    """Files that are called after no split: all of them are `train`."""

    pattern = ""
