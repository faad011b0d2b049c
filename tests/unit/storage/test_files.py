import os

import pytest

from dataloader_svc.errors import SourceError
from dataloader_svc.storage import Storage

storage = Storage()


@pytest.fixture
def tree(tmp_path):
    for name in ("web/b.parquet", "web/a.parquet", "web/._a.parquet", "web/deep/c.parquet", "cap/0001.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    for number in range(8, 12):
        (tmp_path / f"cap/x-{number:04d}.tar").touch()
    return tmp_path


def names(patterns, tree):
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return [os.path.relpath(path, tree) for path in storage.expand(patterns, tree)]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ("web/a.parquet", ["web/a.parquet"]),
        ("./web/../web/a.parquet", ["web/a.parquet"]),
        ("web/*.parquet", ["web/a.parquet", "web/b.parquet"]),
        ("web/?.parquet", ["web/a.parquet", "web/b.parquet"]),
        ("w*/[b-z].parquet", ["web/b.parquet"]),
        ("web/**/*.parquet", ["web/a.parquet", "web/b.parquet", "web/deep/c.parquet"]),
        ("web/._*", ["web/._a.parquet"]),
        ("web/*", ["web/a.parquet", "web/b.parquet"]),
        ("web/{b,a}.parquet", ["web/b.parquet", "web/a.parquet"]),
        ("{cap,web}/{0001,a}.{tar,parquet}", None),
        ("cap/x-{0008..0010}.tar", ["cap/x-0008.tar", "cap/x-0009.tar", "cap/x-0010.tar"]),
        ("cap/x-{0010..0008}.tar", ["cap/x-0010.tar", "cap/x-0009.tar", "cap/x-0008.tar"]),
        ("cap/x-00{08..11}.tar", ["cap/x-0008.tar", "cap/x-0009.tar", "cap/x-0010.tar", "cap/x-0011.tar"]),
        ("{web/a,web/deep/c}.parquet", ["web/a.parquet", "web/deep/c.parquet"]),
        (["web/b.parquet", "web/*.parquet", "web/a.parquet"], ["web/b.parquet", "web/a.parquet"]),
    ],
)
def test_patterns(tree, patterns, found):
    if found is None:
        with pytest.raises(SourceError, match=r"cap/0001\.parquet"):
            names(patterns, tree)
    else:
        assert names(patterns, tree) == found


def test_a_name_with_magic_characters_is_that_file(tmp_path):
    for name in ("data[1].jsonl", "data{a,b}.jsonl", "data1.jsonl"):
        (tmp_path / name).touch()
    assert names("data[1].jsonl", tmp_path) == ["data[1].jsonl"]
    assert names("data{a,b}.jsonl", tmp_path) == ["data{a,b}.jsonl"]


def test_file_urls(tree):
    (tree / "two words.jsonl").write_bytes(b"x")
    assert names(f"file://{tree}/two%20words.jsonl", tree) == ["two words.jsonl"]
    assert storage.read_all(f"file://localhost{tree}/two%20words.jsonl") == b"x"


def test_names_are_below_the_fixed_folder_so_that_data_may_move(tree):
    assert [m.name for m in storage.matches(["web/**/*.parquet"], tree)] == [
        "a.parquet",
        "b.parquet",
        "deep/c.parquet",
    ]
    assert [m.name for m in storage.matches(["{web,cap}/*1.tar", "web/a.parquet"][1:], tree)] == ["a.parquet"]
    assert [m.name for m in storage.matches(["{cap,cap}/0001.tar"], tree)] == ["cap/0001.tar"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("web/a.parqet", ["'a.parqet'", "did you mean 'a.parquet'", "/web"]),
        ("weeb/*.parquet", ["weeb does not exist", "did you mean 'web'"]),
        ("cap/*.parquet", ["nothing called '*.parquet'", "/cap"]),
        ("cap/x-{0008..0013}.tar", ["'x-0012.tar'", "cap/x-{0008..0013}.tar"]),
        ("web", ["is a folder", "web/*"]),
        ("s4://bucket/x.parquet", ["s4://", "is not read", "known: file, gs, hf"]),
        ("x-{0..99999999}", ["more than"]),
        ("cap/x-{0{008,009},0011}.tar", ["braces inside braces", "a list"]),
        ("{0..9999}{0..9999}", ["more than"]),
    ],
)
def test_errors_name_pattern_place_and_remedy(tree, pattern, words):
    with pytest.raises(SourceError) as caught:
        storage.expand([pattern], tree)
    assert [word for word in words if word not in str(caught.value)] == []


def test_ranges(tree):
    path = str(tree / "web/a.parquet")
    assert storage.read_range(path, 4, 3) == b"a.p"
    assert storage.read_range(path, 0, 0) == b""
    with pytest.raises(SourceError, match="wanted 20 bytes at 4, the file ended after 9"):
        storage.read_range(path, 4, 20)


@pytest.mark.parametrize("call", [storage.stat, storage.open, storage.read_all])
def test_unreadable_files_are_named(tree, call):
    with pytest.raises(SourceError, match=r"nowhere\.tar: no such file"):
        call(str(tree / "nowhere.tar"))


def test_stat(tree):
    path = tree / "web/a.parquet"
    os.utime(path, ns=(5, 123_456_789))
    assert storage.stat(str(path)) == (13, 123_456_789)
