import gzip
import io
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloader_svc.config.schema import Config, StorageSettings
from dataloader_svc.errors import SourceError, Unreachable
from dataloader_svc.storage import Storage
from dataloader_svc.storage.compression import CutShort, NotExpandable, compression_of, expand
from dataloader_svc.storage.expanded import MOST_FOLD, ExpandedFiles

MIB = 2**20
NOISE = b"".join(pow(7, number, 2**255).to_bytes(32, "big") for number in range(40_000))  # doesn't compress


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


def skippable(data):
    return struct.pack("<II", 0x184D2A5E, len(data)) + data


def held(data):
    return b"".join(expand(io.BytesIO(data), compression_of(data[:4])))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=5))
def test_members_and_frames_follow_each_other(parts):
    assert held(b"".join(map(gzip.compress, parts))) == b"".join(parts)
    assert held(b"".join(map(zstd, parts))) == b"".join(parts)


def test_large_contents_come_in_pieces_of_a_mebibyte_at_most():
    for data in (NOISE * 4, bytes(20 * MIB)):
        for made in (gzip.compress(data, 1), zstd(data)):
            pieces = list(expand(io.BytesIO(made), compression_of(made[:4])))
            assert b"".join(pieces) == data
            assert max(map(len, pieces)) <= MIB


def test_what_other_tools_put_around():
    """A name and a comment in gzip's header, zeros behind it, skippable frames as pzstd and seekable zstd."""
    name = io.BytesIO()
    with gzip.GzipFile("x.jsonl", "wb", fileobj=name) as file:
        file.write(b"named")
    assert held(name.getvalue() + bytes(1000)) == b"named"
    assert held(skippable(b"index") + zstd(b"a") + skippable(b"") + zstd(b"b")) == b"ab"


@pytest.mark.parametrize("make", [gzip.compress, zstd])
def test_a_cut_gives_what_is_there_and_says_so(make):
    whole = make(NOISE * 3)
    for cut in (len(whole) - 1, len(whole) // 2, 20):
        got = bytearray()
        with pytest.raises(CutShort):
            for piece in expand(io.BytesIO(whole[:cut]), compression_of(whole[:4])):
                got += piece
        assert (NOISE * 3).startswith(bytes(got))
        assert len(got) >= cut - 2 * MIB


def test_damage_and_foreign_bytes_are_told():
    text = b"some text " * 1000
    gzipped = gzip.compress(text)
    damaged = gzipped[:12] + b"\xff" * 8 + gzipped[20:]
    for data in (damaged, gzipped + b"behind", zstd(text) + b"behind", zstd(text) + gzipped):
        with pytest.raises(NotExpandable):
            held(data)


def test_a_wrong_check_sum_is_damage():
    whole = gzip.compress(b"some text " * 1000)
    with pytest.raises(NotExpandable, match="incorrect data check"):
        held(whole[:-8] + struct.pack("<I", zlib.crc32(b"other text")) + whole[-4:])


@pytest.mark.parametrize("head", [b"", b"\x1f\x8b", b"PK\x03\x04", b"{}", b"\x5e\x2a\x4d"])
def test_what_is_not_compressed(head):
    assert compression_of(head) is None


def written(folder, name, data):
    path = folder / name
    path.write_bytes(data)
    return str(path)


def copies(folder):
    return sorted(path.stat().st_size for path in folder.iterdir() if path.suffix in (".whole", ".cut"))


def storage_with(folder, limit=100 * MIB):
    return Storage(scratch=ExpandedFiles(folder, limit))


def test_ranges_of_what_a_file_holds(tmp_path):
    storage = storage_with(tmp_path / "scratch")
    for path in (written(tmp_path, "a", gzip.compress(NOISE)), written(tmp_path, "plain", NOISE)):
        assert storage.read_expanded(path, 1000, 5000) == NOISE[1000:6000]
        with storage.open_expanded(path).file as file:
            assert file.read() == NOISE
        with pytest.raises(SourceError, match="wanted 10 bytes at 1279995, the file ended after 5"):
            storage.read_expanded(path, len(NOISE) - 5, 10)
    assert copies(tmp_path / "scratch") == [len(NOISE)], "one copy, of the compressed one"


def test_a_copy_is_made_once_for_all_threads_and_processes(tmp_path):
    path = written(tmp_path, "a", gzip.compress(NOISE))
    opened = []

    class Counting(Storage):
        def open(self, path):
            opened.append(path)
            return super().open(path)

    storage = Counting(scratch=ExpandedFiles(tmp_path / "scratch", 10 * MIB))
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda at: storage.read_expanded(path, at, 10), range(32)))
    assert got == [NOISE[at : at + 10] for at in range(32)]
    inode = next((tmp_path / "scratch").glob("*.whole")).stat().st_ino
    assert len(opened) == 2 * 32 + 1, "to see what it is (twice a read), and once to expand it"
    other = (
        "import sys; from pathlib import Path; from dataloader_svc.storage import Storage\n"
        "from dataloader_svc.storage.expanded import ExpandedFiles\n"
        "storage = Storage(scratch=ExpandedFiles(Path(sys.argv[1]), 10**7))\n"
        "sys.stdout.buffer.write(storage.read_expanded(sys.argv[2], 5, 10))\n"
    )
    command = [sys.executable, "-c", other, str(tmp_path / "scratch"), path]
    assert subprocess.run(command, capture_output=True, check=True).stdout == NOISE[5:15]
    assert next((tmp_path / "scratch").glob("*.whole")).stat().st_ino == inode


def test_a_changed_file_is_expanded_anew(tmp_path):
    storage = storage_with(tmp_path / "scratch")
    path = written(tmp_path, "a", gzip.compress(b"before"))
    assert storage.read_expanded(path, 0, 6) == b"before"
    written(tmp_path, "a", gzip.compress(b"a longer text after"))
    assert storage.read_expanded(path, 0, 8) == b"a longer"


def test_those_used_longest_ago_go_first_and_readers_keep_theirs(tmp_path):
    storage = storage_with(tmp_path / "scratch", limit=5 * len(NOISE) // 2)
    paths = [written(tmp_path, str(number), gzip.compress(NOISE, 1)) for number in range(3)]
    with storage.open_expanded(paths[0]).file as first:
        storage.read_expanded(paths[1], 0, 1)
        storage.read_expanded(paths[0], 0, 1)
        storage.read_expanded(paths[2], 0, 1)
        assert copies(tmp_path / "scratch") == [len(NOISE)] * 2
        kept = {path.name for path in (tmp_path / "scratch").glob("*.whole")}
        storage.read_expanded(paths[0], 0, 1)
        assert {path.name for path in (tmp_path / "scratch").glob("*.whole")} == kept, "the second one went"
        storage.read_expanded(paths[1], 0, 1)
        storage.read_expanded(paths[2], 0, 1)
        assert first.read() == NOISE


def test_bombs_and_files_larger_than_the_scratch_are_refused(tmp_path):
    folder = tmp_path / "scratch"
    path = written(tmp_path, "large", gzip.compress(NOISE, 1))
    with pytest.raises(
        SourceError, match=r"large: expands to more than 1000 bytes \(storage.scratch_bytes\)"
    ):
        storage_with(folder, limit=1000).read_expanded(path, 0, 1)
    bomb = written(tmp_path, "bomb", zstd(bytes(300 * MIB)))
    with pytest.raises(SourceError, match=f"bomb: expands to more than .*{MOST_FOLD} times its size"):
        storage_with(folder, limit=10**9).read_expanded(bomb, 0, 1)
    assert list(folder.glob("*.whole")) == list(folder.glob(".making-*")) == []


def test_damage_is_named_and_leaves_nothing(tmp_path):
    whole = gzip.compress(NOISE)
    path = written(tmp_path, "damaged", whole[:-8] + bytes(8))
    with pytest.raises(
        SourceError, match="damaged: is damaged: .*incorrect data check; after 1[0-9]{6} expanded"
    ):
        storage_with(tmp_path / "scratch").read_expanded(path, 0, 1)
    assert list((tmp_path / "scratch").glob(".making-*")) == []


def test_a_folder_that_cannot_be_written_says_nothing_of_the_data(tmp_path):
    path = written(tmp_path, "a", gzip.compress(b"x"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unreachable, match="can't be expanded in .*file.*change storage.scratch"):
        storage_with(tmp_path / "file" / "below").read_expanded(path, 0, 1)


def test_what_a_dead_process_left_is_removed(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    left = folder / f".making-{'0' * 32}"
    left.write_bytes(b"half")
    storage_with(folder).read_expanded(written(tmp_path, "a", gzip.compress(b"x")), 0, 1)
    assert not left.exists()


def test_without_a_folder_of_the_job_one_of_our_own_goes_with_us(tmp_path):
    path = written(tmp_path, "a", gzip.compress(b"x"))
    files = ExpandedFiles(None, MIB)
    Storage(scratch=files).read_expanded(path, 0, 1)
    folder = files.folder
    assert copies(folder) == [1]
    del files
    assert not folder.exists()


def test_the_job_says_where(tmp_path):
    settings = StorageSettings(scratch="here", scratch_bytes="1MiB")
    config = Config.model_construct(storage=settings)
    storage = Storage.of(config, tmp_path)
    storage.read_expanded(written(tmp_path, "a", gzip.compress(b"x")), 0, 1)
    assert copies(tmp_path / "here") == [1]
