from __future__ import annotations

from pathlib import Path

import pytest

from dataloader_svc.testing.tokenizer import make_tokenizer
from dataloader_svc.transforms.tokenizers import Tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)
