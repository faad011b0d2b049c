"""Files by path: which ones a pattern names, how large they are, and ranges of their bytes."""

from dataloader_svc.storage.files import Match, Storage
from dataloader_svc.storage.filestat import FileStat

__all__ = ["FileStat", "Match", "Storage"]
