"""What can be known to be wrong before a process is started: everything that needs no data to be read.

`serve`, `bench`, `preview` and `audit` stop here with all problems at once; `check` goes on and reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dataloader_svc import storage
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.errors import ConfigProblems, DataloaderError
from dataloader_svc.loader.rules import sample_rule
from dataloader_svc.sources.base import SOURCES
from dataloader_svc.transforms.text import Tokenizer


def load_checked(path: Path) -> LoadedConfig:
    """A configuration without known problems; raises ConfigProblems with all of them."""
    loaded = load_config(path)
    problems = list(problems_of(loaded))
    if problems:
        raise ConfigProblems(problems)
    return loaded


def problems_of(loaded: LoadedConfig) -> Iterator[str]:
    """Lines about formats, paths, tokenizer, token names and templates, each with file, line and field."""
    config = loaded.config
    for name, source in config.sources.items():
        try:
            SOURCES.get(source.format)
        except DataloaderError as error:
            yield loaded.problem(("sources", name, "format"), str(error))
        try:
            storage.expand(source.paths, loaded.base_dir)
        except DataloaderError as error:
            yield loaded.problem(("sources", name, "path"), str(error))
    try:
        tokenizer = Tokenizer.load(loaded.base_dir / config.tokenizer, config.tokenizer_backend)
    except DataloaderError as error:
        yield loaded.problem(("tokenizer",), str(error))
        return
    for name in config.sources:
        try:
            sample_rule(config, name, loaded.base_dir, tokenizer)
        except DataloaderError as error:
            yield loaded.problem(("sources", name), str(error))
