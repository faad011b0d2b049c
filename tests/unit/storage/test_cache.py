import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dataloader_svc.storage.cache import BlockCache

SIZE = 1000


def body(number: int) -> bytes:
    return number.to_bytes(2, "big") * (SIZE // 2)


def blocks(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "used"]


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in blocks(folder))


def run(code: str, *args: object) -> subprocess.Popen[str]:
    head = "import os, resource, signal, sys\nfrom pathlib import Path\n"
    head += "from dataloader_svc.storage.cache import BlockCache\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *map(str, args)], stderr=subprocess.PIPE, text=True
    )


def test_what_was_put_comes_back(tmp_path):
    cache = BlockCache(tmp_path / "new" / "folder", 10**6)
    assert cache.get("aa-0") is None
    cache.put("aa-0", b"some bytes")
    cache.put("ab-0", b"")
    assert (cache.get("aa-0"), cache.get("ab-0"), cache.get("aa-1")) == (b"some bytes", b"", None)
    assert BlockCache(tmp_path / "new" / "folder", 10**6).get("aa-0") == b"some bytes"


def test_the_bound_holds_and_those_used_longest_ago_go_first(tmp_path):
    cache = BlockCache(tmp_path, 10_000)
    for number in range(9):
        cache.put(f"{number:02d}", body(number))
        os.utime(tmp_path / f"{number:02d}" / f"{number:02d}", (number, number))
    assert cache.get("00") == body(0)  # used just now
    for number in range(9, 12):
        cache.put(f"{number:02d}", body(number))
        assert on_disk(tmp_path) <= 10_000
    assert cache.get("00") == body(0)
    assert cache.get("01") is None
    assert cache.get("11") == body(11)


def test_a_block_above_the_limit_is_not_kept(tmp_path):
    cache = BlockCache(tmp_path, 500)
    cache.put("aa", body(1))
    assert cache.get("aa") is None
    assert blocks(tmp_path) == []


def test_damage_of_any_byte_is_a_miss(tmp_path):
    cache = BlockCache(tmp_path, 10**6)
    for place in range(0, 60, 7):
        cache.put("aa", b"twenty bytes of data")
        path = tmp_path / "aa" / "aa"
        data = bytearray(path.read_bytes())
        data[place % len(data)] ^= 1
        path.write_bytes(data)
        assert cache.get("aa") is None
        assert not path.exists(), "or it would be a miss for ever"
    cache.put("aa", b"twenty bytes of data")
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.get("aa") is None


def test_processes_share_one_bound(tmp_path):
    code = """
cache = BlockCache(Path(sys.argv[1]), 20_000)
for number in range(150):
    name = f"{(number * 7 + int(sys.argv[2])) % 100:02d}"
    found = cache.get(name)
    assert found in (None, int(name).to_bytes(2, "big") * 500), name
    cache.put(name, int(name).to_bytes(2, "big") * 500)
"""
    processes = [run(code, tmp_path, start) for start in (0, 3)]
    assert [process.communicate()[1] for process in processes] == ["", ""]
    assert 0 < on_disk(tmp_path) <= 20_000


def test_threads_of_one_process_share_it_too(tmp_path):
    cache = BlockCache(tmp_path, 8_000)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: cache.put(f"{number % 40:02d}", body(number % 40)), range(200)))
    assert 0 < on_disk(tmp_path) <= 8_000


def test_killed_while_it_writes_leaves_no_wrong_data(tmp_path):
    code = """
cache = BlockCache(Path(sys.argv[1]), 5_000)
cache.put("aa", b"x" * 1000)
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cache.put("bb", b"y" * 1000)
"""
    process = run(code, tmp_path)
    process.communicate()
    assert process.returncode == -9
    cache = BlockCache(tmp_path, 5_000)
    assert (cache.get("aa"), cache.get("bb")) == (b"x" * 1000, None)
    (orphan,) = (path for path in blocks(tmp_path) if path.name.startswith("."))
    os.utime(orphan, (0, 0))
    for number in range(6):  # the lock went with the process
        cache.put(f"{number:02d}", body(number))
    assert cache.get("05") == body(5)
    assert not orphan.exists()
    assert on_disk(tmp_path) <= 5_000


def test_a_write_that_fails_is_said_once_and_no_error(tmp_path):
    code = """
import logging
logging.basicConfig(format="%(message)s")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))  # a disk that fills up in the middle of a block
cache = BlockCache(Path(sys.argv[1]), 10**6)
cache.put("aa", b"x" * 1000)
cache.put("bb", b"x" * 1000)
assert cache.get("aa") is None
"""
    said = run(code, tmp_path).communicate()[1]
    assert said.count("\n") == 1
    assert "without keeping them" in said
    assert blocks(tmp_path) == []


def test_no_folder_is_no_error(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        cache = BlockCache(tmp_path / "file" / "cache", 10**6)
        cache.put("aa", b"x")
    assert cache.get("aa") is None
    assert "not a directory" in caplog.text


def test_a_damaged_count_is_made_anew(tmp_path):
    cache = BlockCache(tmp_path, 5_000)
    cache.put("aa", body(1))
    (tmp_path / "used").write_bytes(b"garbage")
    for number in range(8):
        cache.put(f"{number:02d}", body(number))
    assert on_disk(tmp_path) <= 5_000
    assert cache.get("07") == body(7)
