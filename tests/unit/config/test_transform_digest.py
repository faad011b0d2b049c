"""Transforms are part of what a resume is held against, and so is the file of a mapped function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataloader_svc.config.code_files import module_file, split_function
from dataloader_svc.config.digest import compare, config_hash, read_digest
from dataloader_svc.config.schema import Config


def config(transforms: list[dict[str, Any]]) -> Config:
    source = {"format": "jsonl", "path": "a.jsonl", "text": "t", "transforms": transforms}
    return Config.model_validate(
        {
            "job": "j",
            "tokenizer": "t.json",
            "sequence_length": 128,
            "global_batch": {"sequences": 4},
            "sources": {"a": source},
            "mixture": {"schedule": [{"step": 0, "a": 1}]},
        }
    )


@pytest.mark.parametrize(
    "other",
    [
        [],
        [{"filter": "w > 2"}],
        [{"filter": "w > 1"}, {"max_samples": 3}],
        [{"max_samples": 4}, {"filter": "w > 1"}],
    ],
)
def test_another_list_is_named(tmp_path: Path, other: list[dict[str, Any]]) -> None:
    before, after = config([{"filter": "w > 1"}]), config(other)
    assert compare(read_digest(before, tmp_path), read_digest(after, tmp_path)) == ["sources.a.transforms"]
    assert config_hash(before, tmp_path) != config_hash(after, tmp_path)


@pytest.mark.parametrize("entry", ["tidy_of_test:clean", {"function": "tidy_of_test:clean"}])
def test_the_code_of_a_map_counts(tmp_path: Path, entry: Any) -> None:
    mapped = config([{"map": entry}])
    missing = read_digest(mapped, tmp_path)
    (tmp_path / "tidy_of_test.py").write_text("def clean(row): return row")
    first = read_digest(mapped, tmp_path)
    (tmp_path / "tidy_of_test.py").write_text("def clean(row): return None")
    second = read_digest(mapped, tmp_path)
    assert compare(missing, first) == compare(first, second) == ["sources.a.transforms"]
    assert second == read_digest(mapped, tmp_path)


def test_files_are_found_as_python_finds_them(tmp_path: Path) -> None:
    package = tmp_path / "mine_of_test"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('a search must not run this')")
    (package / "inner" / "__init__.py").write_text("")
    (package / "clean.py").write_text("")
    assert module_file("mine_of_test", tmp_path) == package / "__init__.py"
    assert module_file("mine_of_test.clean", tmp_path) == package / "clean.py"
    assert module_file("mine_of_test.inner", tmp_path) == package / "inner" / "__init__.py"
    assert module_file("mine_of_test.none", tmp_path) is None
    assert module_file("json", tmp_path).name == "__init__.py"
    assert module_file("json.decoder", tmp_path).name == "decoder.py"
    assert module_file("sys", tmp_path) is None


@pytest.mark.parametrize("name", ["clean", "a:b:c", ":f", "a:", "a.:f", "a b:c", "../a:f", "a.b"])
def test_what_names_no_function(name: str) -> None:
    with pytest.raises(ValueError, match="expected MODULE:FUNCTION"):
        split_function(name)
