from __future__ import annotations

import pytest

from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import Registry


def test_names_are_taken_once_and_errors_list_them() -> None:
    registry: Registry[int] = Registry("format", "dataloader_svc.no_such_group")
    registry.register("parquet")(1)
    registry.register("jsonl")(2)
    assert registry.names() == list(registry) == ["jsonl", "parquet"]
    assert registry.get("parquet") == 1
    with pytest.raises(
        ConfigError, match="unknown format 'parqet'; known: jsonl, parquet; did you mean 'parquet'"
    ):
        registry.get("parqet")
    with pytest.raises(ValueError, match="'jsonl' is registered twice"):
        registry.register("jsonl")(3)
