"""Files by path: which ones a pattern names, how large they are, and ranges of their bytes."""

from dataloader_svc.storage.files import FileStat, Match, Storage

__all__ = ["FileStat", "Match", "Storage"]
