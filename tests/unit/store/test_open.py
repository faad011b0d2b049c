"""`store:` of a configuration: which store, which file, and what a wrong one is told."""

import sys
from contextlib import closing

import pytest

from dataloader_svc.errors import ConfigError, StoreError
from dataloader_svc.store import MemoryStore, SqliteStore, open_store


def test_sqlite_is_a_file_in_the_base_folder_which_is_made(tmp_path):
    with closing(open_store("sqlite", tmp_path / "new" / "folder")) as store:
        assert isinstance(store, SqliteStore)
        assert store.path == tmp_path / "new" / "folder" / "state.db"
        assert store.path.exists()


def test_three_slashes_are_relative_and_four_absolute(tmp_path):
    (tmp_path / "sub").mkdir()
    with closing(open_store("sqlite:///sub/a.db", tmp_path)) as store:
        assert store.path == tmp_path / "sub" / "a.db"
    with closing(open_store(f"sqlite:///{tmp_path}/b.db", tmp_path / "elsewhere")) as store:
        assert store.path == tmp_path / "b.db"


def test_memory(tmp_path):
    with closing(open_store("memory:", tmp_path)) as store:
        assert isinstance(store, MemoryStore)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_store_is_told_what_there_is(tmp_path):
    with pytest.raises(ConfigError, match=r"'sqlit'; known: .*; did you mean 'sqlite'\?") as info:
        open_store("sqlit:///a.db", tmp_path)
    assert info.value.__notes__ == ["in store: 'sqlit:///a.db'"]


def test_without_its_package_redis_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"'redis://\*\*\*@host:6379/0': needs .*dataloader-svc\[redis\]"):
        open_store("redis://user:secret@host:6379/0", tmp_path)


@pytest.mark.parametrize("url", ["sqlite:a.db", "sqlite://a.db", "sqlite:///", "memory:x"])
def test_malformed_urls(tmp_path, url):
    with pytest.raises(ConfigError, match="write '"):
        open_store(url, tmp_path)


def test_a_missing_folder_of_an_explicit_path_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"var/job/a\.db: its folder does not exist.*'sqlite:////' absolute"):
        open_store("sqlite:///var/job/a.db", tmp_path)
