"""A Hugging Face dataset folder: its files by split, each read by the format that its suffix names.

`path:` is the folder, as cloned or downloaded from the hub, or written by `save_to_disk`. Which files are a
split's is told in `huggingface_layout.py`; rows are the business of the other formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.errors import SourceError
from dataloader_svc.sources.base import (
    SOURCES,
    Extent,
    FormatContext,
    Rows,
    ShardIndex,
    SourceFormat,
)
from dataloader_svc.sources.huggingface_layout import FORMATS, data_files, format_name, split_names
from dataloader_svc.storage import Match


class HuggingFaceOptions(Model):
    """`options:` of a Hugging Face folder."""

    split: str = Field(default="train", description="The split to read.")
    config: str | None = Field(
        default=None,
        description="Configuration (subset) by its name in README.md, or a folder. Default: the default one.",
    )


@SOURCES.register("huggingface")
class HuggingFaceFolder(SourceFormat):
    """Hugging Face dataset folder: the data files of a split, as the `datasets` library finds them."""

    Options = HuggingFaceOptions
    marks = ("dataset_info.json", "dataset_dict.json")

    def __init__(self, context: FormatContext) -> None:
        super().__init__(context)
        self._formats: dict[str, SourceFormat] = {}
        for name in sorted(set(FORMATS.values())):
            made = SOURCES.get(name)
            inner = FormatContext(context.fields, context.storage, context.extent_bytes, made.Options())
            self._formats[name] = made(inner)
        # an index is as old as the oldest rule that made it
        self.index_version = sum(each.index_version for each in self._formats.values())

    def list_shards(self, patterns: Sequence[str], base_dir: Path) -> list[Match]:
        """The files of the split in each folder."""
        return [match for folder in patterns for match in self._files(folder, base_dir)]

    def index_shard(self, path: str) -> ShardIndex:
        """As the file's own format."""
        return self._format(path).index_shard(path)

    def read(self, path: str, extent: Extent) -> Rows:
        """As the file's own format."""
        return self._format(path).read(path, extent)

    def columns(self, path: str, extent: Extent) -> tuple[str, ...]:
        """As the file's own format."""
        return self._format(path).columns(path, extent)

    def splits(self, folder: str) -> tuple[Mapping[str, object], ...]:
        """Those of each configuration."""
        found, storage = self._found(folder), self.context.storage
        try:
            pairs = split_names(sorted(found), lambda name: storage.read_all(found[name].path))
        except SourceError as error:
            raise SourceError(f"{folder}: {error}") from error
        return tuple({"config": config, "split": split} for config, split in pairs)

    def _format(self, path: str) -> SourceFormat:
        name = format_name(path)
        if name is None:
            raise SourceError(f"{path}: is none of {', '.join(FORMATS)}")
        return self._formats[name]

    def _files(self, folder: str, base_dir: Path) -> list[Match]:
        storage, options = self.context.storage, self.context.options
        assert isinstance(options, HuggingFaceOptions)
        root = storage.join(str(base_dir.absolute()), folder)
        found = self._found(root)
        try:
            names = data_files(
                sorted(found), lambda name: storage.read_all(found[name].path), options.config, options.split
            )
        except SourceError as error:
            raise SourceError(f"{folder}: {error}") from error
        return [found[name] for name in names]

    def _found(self, root: str) -> dict[str, Match]:
        """All files below, by their names there."""
        matches = self.context.storage.matches([f"{root}/**/*"], Path(root))
        return {match.name: match for match in matches}
