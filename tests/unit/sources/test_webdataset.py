import gzip
import io
import tarfile
from pathlib import Path

import pytest

from dataloader_svc.errors import Reason, SourceError
from dataloader_svc.sources.base import Fields, FormatContext
from dataloader_svc.sources.webdataset import WebDataset

FIELDS = Fields({"text": ("txt",), "image": ("jpg", "png")})


def shard(tmp_path, *entries):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def read_all(path, fields=FIELDS, extent_bytes=2**20):
    maker = WebDataset(FormatContext(fields, extent_bytes=extent_bytes))
    index = maker.index_shard(path)
    read = [maker.read(path, extent) for extent in index.extents]
    texts = [text for rows in read for text in rows.columns["text"]]
    return index, read, texts


def test_names(tmp_path):
    """Keys have the folder and end at the first dot of the file's name; hidden files are nothing."""
    path = shard(
        tmp_path,
        ("./v1.0/0001.TXT", b"one"),
        ("._0001.txt", b"finder"),
        ("__MACOSX/v1.0/._0001.txt", b"finder"),
        (".DS_Store", b"finder"),
        ("README", b"no extension"),
        ("v1.0/0001.Jpg", b"1"),
        ("v1.0/0001.seg.png", b"not the picture"),
        ("v2.0/0001.txt", b"two"),
        ("v2.0/0001.png", b"2"),
    )
    index, (rows,), texts = read_all(path)
    assert texts == ["one", "two"]
    assert rows.columns["image"] == [[b"1"], [b"2"]]
    assert rows.bad == {}
    assert index.warnings == ()


def test_the_first_extension_that_a_sample_has(tmp_path):
    path = shard(tmp_path, ("a.png", b"p"), ("a.jpg", b"j"), ("a.txt", b""), ("b.txt", b""), ("b.png", b"p"))
    _, (rows,), _ = read_all(path)
    assert rows.columns["image"] == [[b"j"], [b"p"]]


def test_extents_hold_about_their_bytes_and_count_mapped_members(tmp_path):
    entries = []
    for number in range(20):
        entries += [
            (f"{number}.txt", b"t" * 100),
            (f"{number}.npy", b"n" * 3000),
            (f"{number}.jpg", b"j" * 700),
        ]
    index, read, texts = read_all(shard(tmp_path, *entries), extent_bytes=20_000)
    sample = 3 * 512 + 512 + 3072 + 1024
    assert [extent.num_rows for extent in index.extents] == [20_000 // sample] * 6 + [2]
    assert all(extent.num_bytes == extent.num_rows * 800 for extent in index.extents)
    assert len(texts) == 20
    assert all(rows.bad == {} for rows in read)


def test_a_role_that_no_member_serves_is_told(tmp_path):
    path = shard(tmp_path, ("a.txt", b"t"), ("a.jpeg", b"j"))
    assert dict(read_all(path)[0].missing) == {
        "image": "'jpg' or 'png'; found: txt, jpeg; did you mean 'jpeg'?"
    }


def test_text_and_messages_that_are_none(tmp_path):
    path = shard(
        tmp_path,
        ("a.txt", b"\xff"),
        ("b.txt", b"\xef\xbb\xbfwith mark"),
        ("c.txt", b""),
        ("d.json", b'[{"role": "user", "content": "x"}]'),
        ("e.json", b"{"),
        ("f.json", b'{"role": "user"}'),
        ("g.json", b""),
    )
    _, (rows,), texts = read_all(path, Fields({"text": ("txt",)}))
    assert texts[1:3] == ["with mark", ""]
    assert rows.bad[0].reason is Reason.BAD_RECORD
    assert "'a.txt' is not UTF-8" in rows.bad[0].detail
    rows = WebDataset(FormatContext(Fields({"messages": ("json",)}), extent_bytes=1)).index_shard(path)
    maker = WebDataset(FormatContext(Fields({"messages": ("json",)}), extent_bytes=10**6))
    (extent,) = maker.index_shard(path).extents
    rows = maker.read(path, extent)
    assert rows.columns["messages"][3] == [{"role": "user", "content": "x"}]
    reasons = [rows.bad[row].reason for row in (0, 4, 5, 6)]
    assert reasons == [
        Reason.MISSING_FIELD,
        Reason.BAD_RECORD,
        Reason.WRONG_TYPE,
        Reason.MISSING_FIELD,
    ]


def test_a_cut_between_members_is_suspected(tmp_path):
    path = shard(tmp_path, ("a.txt", b"t" * 10), ("a.jpg", b"j"))
    with Path(path).open("r+b") as file:
        file.truncate(2048)
    index, (rows,), _ = read_all(path)
    assert rows.bad == {}
    assert index.warnings == (f"{path}: has no end mark; it may be cut",)


def test_a_damaged_header_loses_what_follows_and_says_so(tmp_path):
    entries = [(f"{number}.{kind}", b"x") for number in range(4) for kind in ("txt", "jpg")]
    path = shard(tmp_path, *entries)
    with Path(path).open("r+b") as file:
        file.seek(1024 * 5)  # the header of 2.jpg
        file.write(b"garbage")
    index, (rows,), _ = read_all(path)
    assert index.num_rows == 3
    assert {row: error.reason for row, error in rows.bad.items()} == {2: Reason.MISSING_FIELD}
    (warning,) = index.warnings
    assert "byte 5120" in warning
    assert "lost" in warning


@pytest.mark.parametrize(("cut_at", "whole"), [(1024 * 4 + 513, 2), (1024 * 3 + 513, 1), (1024 * 3 + 100, 2)])
def test_the_sample_that_a_cut_goes_through_is_left_out(tmp_path, cut_at, whole):
    """A part is cut; or the header of a part, so that nobody knows whose it was."""
    entries = [(f"{number}.{kind}", b"x" * 100) for number in range(4) for kind in ("txt", "jpg")]
    path = shard(tmp_path, *entries)
    with Path(path).open("r+b") as file:
        file.truncate(cut_at)
    index, (rows,), _ = read_all(path)
    assert index.num_rows == whole
    assert rows.num_rows - len(rows.bad) == cut_at // 2048
    assert len(index.warnings) == 1


def test_a_key_that_comes_back_is_refused(tmp_path):
    path = shard(tmp_path, ("a.txt", b"t"), ("b.txt", b"t"), ("a.jpg", b"j"))
    with pytest.raises(
        SourceError, match=r"x\.tar: parts of sample 'a' are not next to each other.*--sort=name"
    ):
        read_all(path)


def test_a_text_may_lie_in_a_json_member(tmp_path):
    path = shard(
        tmp_path,
        ("a.json", b'{"caption": "a cat", "more": {"long": "a black cat"}}'),
        ("b.json", b'{"caption": null}'),
        ("c.json", b'{"caption": 7}'),
        ("d.json", b"{"),
    )
    index, (rows,), texts = read_all(path, Fields({"text": ("json.caption",)}))
    assert index.missing == {}
    assert texts[0] == "a cat"
    reasons = [rows.bad[row].reason for row in (1, 2, 3)]
    assert reasons == [Reason.MISSING_FIELD, Reason.WRONG_TYPE, Reason.BAD_RECORD]
    assert read_all(path, Fields({"text": ("txt", "json.more.long")}))[2][0] == "a black cat"
    missing = read_all(shard(tmp_path, ("a.txt", b"t")), Fields({"text": ("txt.en",)}))[0].missing
    assert missing["text"].startswith("'txt.en'; found: txt")


def test_names_with_dots_slashes_and_odd_characters_stay_apart(tmp_path):
    """One base name in several folders; a folder that is hidden or has a dot; a very long name."""
    names = ["a/0001", "b/0001", "b.c/0001", "./d/0001", "/e/0001", "f//0001", "a b/ü猫", "x" * 300]
    path = shard(tmp_path, *((f"{name}.{kind}", name.encode()) for name in names for kind in ("txt", "jpg")))
    _, (rows,), texts = read_all(path)
    assert texts == names
    assert rows.bad == {}
    assert rows.columns["image"] == [[name.encode()] for name in names]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_the_three_kinds_of_headers_give_the_same(tmp_path, kind):
    path = tmp_path / "x.tar"
    keys = [f"{'folder/' * 12}{number:04d}" for number in range(3)]  # 84 to 100 bytes: ustar needs its prefix
    with tarfile.open(path, "w", format=kind) as tar:
        for key in keys:
            for name, data in (
                (f"{key}.txt", key.encode()),
                (f"{key}.long-extension-of-a-picture.jpg", b"j"),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    fields = Fields({"text": ("txt",), "image": ("long-extension-of-a-picture.jpg",)})
    _, (rows,), texts = read_all(str(path), fields)
    assert texts == keys
    assert rows.bad == {}


def test_links_and_folders_are_no_members(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("a.d", tarfile.DIRTYPE), ("b.txt", tarfile.SYMTYPE), ("c.txt", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "../../etc/passwd"
            tar.addfile(info)
        info = tarfile.TarInfo("d.txt")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"d"))
    assert read_all(str(path), Fields({"text": ("txt",)}))[2] == ["d"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_compressed_shards(tmp_path, suffix):
    path = tmp_path / "x.tar"  # by content, whatever it is called
    with tarfile.open(path, f"w:{suffix[1:]}") as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"one"))
    fields = Fields({"text": ("txt",)})
    if suffix == ".gz":
        assert read_all(str(path), fields)[2] == ["one"]
        return
    with pytest.raises(SourceError, match=r"x\.tar: is compressed \((xz|bzip2)\): decompress it"):
        read_all(str(path), fields)


def test_a_compressed_shard_that_is_cut_gives_its_whole_samples(tmp_path):
    entries = [(f"{number}.{kind}", bytes([number])) for number in range(200) for kind in ("txt", "jpg")]
    whole = Path(shard(tmp_path, *entries)).read_bytes()
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(gzip.compress(whole)[:-400])
    index, read, texts = read_all(str(path), Fields({"text": ("txt",), "image": ("jpg",)}))
    assert 0 < index.num_rows < 200
    assert all(rows.bad == {} or min(rows.bad) > 127 for rows in read), "from 128 on they are no UTF-8"
    assert texts[:100] == [chr(number) for number in range(100)]
    assert len(index.warnings) == 1
