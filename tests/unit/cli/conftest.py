from __future__ import annotations

import pytest

from dataloader_svc.testing.tokenizer import make_tokenizer
from dataloader_svc.transforms.tokenizers import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))
