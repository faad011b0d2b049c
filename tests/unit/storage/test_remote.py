import io
import random

import pytest

from dataloader_svc.config.schema import StorageSettings
from dataloader_svc.errors import SourceError, Unreachable
from dataloader_svc.storage import Storage
from dataloader_svc.storage.cache import BlockCache
from dataloader_svc.storage.remote import BLOCK, PACKAGES, RemoteFiles

fsspec = pytest.importorskip("fsspec")

PATTERNS = [
    "*.tar",
    "a/*",
    "a/*.tar",
    "**/*.tar",
    "a/**/x.tar",
    "**",
    "*/[ab].tar",
    "a/?.tar",
    "a/.h*",
    "{a,c}/**/x.tar",
]
KEYS = [
    "a/a.tar",
    "a/b.tar",
    "a/.hidden",
    "a/d/x.tar",
    "a/d/e/x.tar",
    "a/.d/x.tar",
    "a/x.tar",
    "c/x.tar",
    "top.tar",
]


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory", skip_instance_cache=True)
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def store(memory):
    class Spy(RemoteFiles):
        def __init__(self, *args):
            super().__init__(*args)
            self.fetched = []

        def _fetch(self, url, start, stop):
            self.fetched.append((start, stop))
            return super()._fetch(url, start, stop)

    return Spy


def test_patterns_mean_the_same_as_on_the_disk(memory, tmp_path):
    for key in KEYS:
        memory.pipe(f"/root/{key}", b"x")
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"x")
    storage = Storage()
    for pattern in PATTERNS:
        local = [match.name for match in storage.matches([pattern], tmp_path)]
        remote = [match.name for match in storage.matches([f"memory://root/{pattern}"], tmp_path)]
        assert remote == local, pattern


@pytest.mark.parametrize("cached", [False, True])
def test_a_remote_file_is_a_file(cached, memory, store, tmp_path):
    rng = random.Random(3)
    data = rng.randbytes(9 * BLOCK + 12345)
    memory.pipe("/f.bin", data)
    files = store(StorageSettings(read_ahead=3 * BLOCK), BlockCache(tmp_path, 2**30) if cached else None)
    storage = Storage(remote=files)
    oracle = io.BytesIO(data)
    with storage.open("memory://f.bin") as file:
        for _ in range(200):
            match rng.randrange(4):
                case 0:
                    place = (rng.randrange(-5, len(data) + 5), 0)
                    if place[0] < 0:
                        with pytest.raises(ValueError, match="before the beginning"):
                            file.seek(*place)
                        continue
                    assert file.seek(*place) == oracle.seek(*place)
                case 1:
                    back = rng.randrange(len(data))
                    assert file.seek(-back, 2) == oracle.seek(-back, 2)
                case _:
                    length = rng.choice([0, 1, 512, 70_000, 2 * BLOCK])
                    assert file.read(length) == oracle.read(length)
            assert file.tell() == oracle.tell()
    assert all(stop <= len(data) for _, stop in files.fetched)
    if cached:
        covered = [
            number for start, stop in files.fetched for number in range(start // BLOCK, -(-stop // BLOCK))
        ]
        assert len(covered) == len(set(covered)), "nothing is fetched twice"


def test_ranges_end_with_the_file(memory):
    memory.pipe("/short", b"0123456789")
    storage = Storage()
    assert storage.read_range("memory://short", 8, 2) == b"89"
    assert storage.read_all("memory://short") == b"0123456789"
    with pytest.raises(SourceError, match="ended after 2"):
        storage.read_range("memory://short", 8, 3)
    with pytest.raises(SourceError, match="not found"):
        storage.stat("memory://none")


def test_a_run_of_missing_blocks_is_one_request(memory, store, tmp_path):
    data = bytes(range(256)) * (8 * BLOCK // 256)
    memory.pipe("/f", data)
    files = store(StorageSettings(), BlockCache(tmp_path, 2**30))
    assert files.read("memory://f", 3 * BLOCK, 4 * BLOCK) == data[3 * BLOCK : 4 * BLOCK]
    assert files.read("memory://f", 1, len(data)) == data[1:]
    assert files.fetched == [(3 * BLOCK, 4 * BLOCK), (0, 3 * BLOCK), (4 * BLOCK, 8 * BLOCK)]
    files.fetched.clear()
    assert files.read("memory://f", 5, 7 * BLOCK) == data[5 : 7 * BLOCK]
    assert files.fetched == []


def test_joins():
    storage = Storage()
    assert storage.join("s3://b/x", "y/z.png") == "s3://b/x/y/z.png"
    assert storage.join("s3://b/x", "../z.png") == "s3://b/z.png"
    assert storage.join("s3://b/x", "s3://c/z.png") == "s3://c/z.png"
    assert storage.join("s3://b/x", "file:///tmp/z.png") == "/tmp/z.png"
    assert storage.join("/data", "https://h/z.png?s=1") == "https://h/z.png?s=1"
    assert storage.join("/data", "z.png") == "/data/z.png"
    with pytest.raises(SourceError, match="leads out"):
        storage.join("s3://b/x", "../../c/z.png")
    assert [storage.is_local(path) for path in ("/a", "file:///a", "s3://a/b")] == [True, True, False]
    with pytest.raises(SourceError, match="not on this machine"):
        storage.local_path("s3://a/b")


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(PACKAGES, "gs", ("fsspec", "no_such_package"))
    with pytest.raises(
        SourceError, match=r"needs no_such_package: pip install 'dataloader-svc\[stores\]'"
    ) as caught:
        Storage().stat("gs://bucket/x")
    assert "\n" not in str(caught.value)


def test_a_web_server_is_not_listed(tmp_path):
    with pytest.raises(SourceError, match=r"can't be listed; name the files"):
        Storage().matches(["https://127.0.0.1:1/x-*.tar"], tmp_path)


def test_secrets_do_not_stand_in_the_file():
    with pytest.raises(ValueError, match="credentials come from the environment"):
        StorageSettings(options={"s3": {"secret": "x"}})


def test_what_a_store_can_not_say_is_not_taken_for_a_missing_file(monkeypatch, tmp_path):
    settings = StorageSettings(retries=1)
    storage = Storage(remote=RemoteFiles(settings, wait_s=0.001))
    with pytest.raises(Unreachable, match="no good answer in 2 attempts"):
        storage.matches(["https://127.0.0.1:1/x.tar"], tmp_path)  # nobody listens there
    monkeypatch.setitem(PACKAGES, "gs", ("no_such_package",))
    with pytest.raises(SourceError, match="needs no_such_package"):
        storage.matches(["gs://bucket/x-*.tar"], tmp_path)
