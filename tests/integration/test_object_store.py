"""Shards in an object store: equal to local ones, in ranges, through trouble, from the command line too."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dataloader_client import DataServiceLoader
from dataloader_svc.config.schema import Source, StorageSettings
from dataloader_svc.errors import BadSample, SourceError, Unreachable
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SourceReader
from dataloader_svc.storage import Storage
from dataloader_svc.storage.cache import BlockCache
from dataloader_svc.storage.remote import BLOCK, RemoteFiles
from dataloader_svc.testing.data import WRITERS, tiny_rows, write_source
from object_store import BUCKET, Store, error, hanging, object_store, truncated
from real_job import Served, job_values, run_cli, serve, write_config

pytest.importorskip("moto")
pytest.importorskip("s3fs")

INTERNAL = error(500, "InternalError", "We encountered an internal error. Please try again.")
SLOW_DOWN = error(503, "SlowDown", "Please reduce your request rate.")
EXPIRED = error(400, "ExpiredToken", "The provided token has expired.")
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}


@pytest.fixture(scope="module")
def running() -> Iterator[Store]:
    with object_store() as store:
        yield store


@pytest.fixture
def store(running: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    running.requests.clear()
    running.faults.clear()
    return running


def settings_of(store: Store, **changes: object) -> StorageSettings:
    options = {"s3": {"endpoint_url": store.url}}
    return StorageSettings.model_validate({"options": options, "timeout": 10, "deadline": 30} | changes)


def storage_of(store: Store, cache: Path | None = None, **changes: object) -> Storage:
    kept = None if cache is None else BlockCache(cache, 2**30)
    return Storage(remote=RemoteFiles(settings_of(store, **changes), kept, wait_s=0.001))


def epoch(reader: SourceReader) -> list[object]:
    got: list[object] = []
    for number in range(reader.order(0).num_blocks):
        block = reader.read_block(BlockId(reader.name, 0, number))
        pictures = [
            [m if isinstance(m, bytes) else reader.read_media(m, block.paths[shard]) for m in media]
            for media, shard in zip(block.columns["image"], block.shard.tolist(), strict=True)
        ]
        got.append((block.columns["text"], pictures, block.bad))
    return got


def remote_copy(source: Source, where: str, folder: Path) -> Source:
    paths = [f"{where}/{Path(path).relative_to(folder)}".removesuffix("/.") for path in source.paths]
    return source.model_copy(update={"path": paths})


@pytest.mark.parametrize("name", sorted(set(WRITERS.names()) - {"lance"}))  # which reads local files alone
def test_every_format_reads_the_same_as_locally(name: str, store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    source = write_source(folder, name, tiny_rows(30, image_side=4), shards=2, extent=1000)
    local = SourceReader("s", source, tmp_path, None, 3)
    where = store.upload(folder, f"{name}/")
    remote = remote_copy(source, where, folder)
    cold = SourceReader(
        "s", remote, tmp_path, tmp_path / "index", 3, storage=storage_of(store, tmp_path / "c")
    )
    assert cold.index.digest == local.index.digest
    assert cold.num_rows == 30
    assert epoch(cold) == epoch(local)
    store.requests.clear()
    warm = SourceReader(
        "s", remote, tmp_path, tmp_path / "index", 3, storage=storage_of(store, tmp_path / "c")
    )
    assert epoch(warm) == epoch(local)
    assert sum(request.sent for request in store.gets(".")) == 0, "the second time all comes from the disk"


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_compressed_object_is_read_once_and_an_outage_is_none_of_its_damage(
    how: str, store: Store, tmp_path: Path
) -> None:
    noise = b"".join(pow(7, number, 2**255).to_bytes(32, "big") for number in range(100_000))

    def pack(data: bytes) -> bytes:
        return gzip.compress(data, 1) if how == "gzip" else pa.Codec("zstd").compress(data, asbytes=True)

    store.put(f"packed-{how}", pack(noise))
    path = f"s3://{BUCKET}/packed-{how}"
    storage = storage_of(store, retries=1)
    store.fail(INTERNAL, times=20, part="packed")
    with pytest.raises(Unreachable, match=f"packed-{how}"):
        storage.read_expanded(path, 0, 1)
    store.faults.clear()
    storage.read_expanded(path, 0, 1)  # what it is, is known from here on: the next outage meets the body
    noise, packed = noise[1:], pack(noise[1:])
    store.put(f"packed-{how}", packed)
    store.fail(INTERNAL, times=20, part="packed")
    with pytest.raises(Unreachable, match=f"packed-{how}"):
        storage.read_expanded(path, 0, 1)
    store.faults.clear()
    store.requests.clear()
    for at in (0, 2_000_000, 1_000):
        assert storage.read_expanded(path, at, 50) == noise[at : at + 50]
    assert sum(request.sent for request in store.gets("packed")) < 2 * len(packed)
    store.put(f"packed-{how}", packed[:-100])
    fresh = storage_of(store)
    opened = fresh.open_expanded(path)
    with opened.file as file:
        assert noise.startswith(file.read())
    assert opened.cut


def test_a_block_costs_its_own_bytes(store: Store, tmp_path: Path) -> None:
    size = 40 * BLOCK
    data = bytes(range(256)) * (size // 256)
    store.put("large.bin", data)
    storage = storage_of(store, tmp_path / "cache")
    offset, length = 17 * BLOCK + 1000, BLOCK
    assert storage.read_range(f"s3://{BUCKET}/large.bin", offset, length) == data[offset : offset + length]
    assert [request.range for request in store.gets("large.bin")] == [f"bytes={17 * BLOCK}-{19 * BLOCK - 1}"]
    bare = storage_of(store)
    store.requests.clear()
    assert bare.read_range(f"s3://{BUCKET}/large.bin", 5, 7) == data[5:12]
    assert [request.sent for request in store.gets("large.bin")] == [7]


def test_reading_on_asks_for_more_each_time(store: Store) -> None:
    data = bytes(range(256)) * (16 * BLOCK // 256)
    store.put("long.bin", data)
    with storage_of(store, read_ahead=4 * BLOCK).open(f"s3://{BUCKET}/long.bin") as file:
        assert b"".join(iter(lambda: file.read(BLOCK // 2), b"")) == data
    sizes = [request.sent // BLOCK for request in store.gets("long.bin")]
    assert sizes == [2, 4, 4, 4, 2]


@pytest.mark.parametrize("fault", [INTERNAL, SLOW_DOWN, truncated], ids=["500", "503", "truncated"])
def test_what_passes_is_tried_again(fault, store: Store) -> None:
    store.put("some.bin", b"0123456789" * 1000)
    store.fail(fault, times=3, part="some.bin")
    assert storage_of(store).read_all(f"s3://{BUCKET}/some.bin") == b"0123456789" * 1000
    assert len(store.gets("some.bin")) == 4


def test_a_body_that_stops_coming_is_asked_for_again(store: Store) -> None:
    store.put("slow.bin", b"0123456789" * 1000)
    store.fail(hanging, part="slow.bin")
    assert storage_of(store, timeout=0.5).read_all(f"s3://{BUCKET}/slow.bin") == b"0123456789" * 1000


def test_what_does_not_pass_ends_at_the_limit_and_names_the_object(store: Store) -> None:
    store.put("down.bin", b"x")
    store.fail(INTERNAL, times=100, part="down.bin")
    with pytest.raises(Unreachable) as caught:
        storage_of(store, retries=2).read_range(f"s3://{BUCKET}/down.bin", 0, 1)
    assert len(store.gets("down.bin")) == 3
    text = str(caught.value)
    for word in (
        f"bucket '{BUCKET}'",
        "key 'down.bin'",
        "3 attempts",
        "500 InternalError",
        "storage.retries",
    ):
        assert word in text


@pytest.mark.parametrize(("method", "told"), [("GET", "ExpiredToken"), ("HEAD", "400")])
def test_expired_credentials_are_said_at_once(method: str, told: str, store: Store) -> None:
    store.put("mine.bin", b"x")
    store.fail(EXPIRED, times=100, method=method, part="mine.bin")
    with pytest.raises(Unreachable) as caught:
        storage_of(store).read_all(f"s3://{BUCKET}/mine.bin")
    # botocore itself asks once more after HEAD's 400, in case the bucket's region was a wrong one
    asked = [r for r in store.requests if r.method == method and "mine.bin" in r.path]
    assert len(asked) <= (1 if method == "GET" else 2)
    for word in (f"bucket '{BUCKET}'", "key 'mine.bin'", told, "renew the credentials"):
        assert word in str(caught.value)


def test_a_missing_object_is_no_outage(store: Store) -> None:
    with pytest.raises(SourceError, match="key 'no/such.bin'") as caught:
        storage_of(store).read_all(f"s3://{BUCKET}/no/such.bin")
    assert not isinstance(caught.value, Unreachable)
    with pytest.raises(SourceError, match="no-such-bucket"):
        storage_of(store).stat("s3://no-such-bucket/x")


def test_an_object_written_anew_with_the_same_size_is_noticed(store: Store, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/again.bin"
    storage = storage_of(store, tmp_path)
    store.put("again.bin", b"old data")
    before = storage.stat(url)
    assert storage.read_all(url) == b"old data"
    store.put("again.bin", b"new data")
    assert storage.stat(url).size == before.size
    assert storage.stat(url) != before
    assert storage.read_all(url) == b"new data"


def test_an_outage_leaves_out_no_shard_and_no_row(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    source = write_source(folder, "jsonl", tiny_rows(30), shards=3, extent=300)
    remote = remote_copy(source, store.upload(folder, "outage/"), folder)
    store.fail(INTERNAL, times=20, part="part-0001")
    with pytest.raises(Unreachable):
        SourceReader("s", remote, tmp_path, None, 3, storage=storage_of(store, retries=1))
    store.faults.clear()
    reader = SourceReader("s", remote, tmp_path, None, 3, storage=storage_of(store, retries=1))
    store.fail(EXPIRED, times=100, part="part-")
    with pytest.raises(Unreachable):
        reader.read_block(BlockId("s", 0, 0))


def test_names_globs_and_what_is_said_of_none(store: Store, tmp_path: Path) -> None:
    for key in ("g/b.tar", "g/a.tar", "g/.hidden.tar", "g/deep/c.tar", *(f"g/n-{i:02d}" for i in range(12))):
        store.put(key, b"x")
    storage, root = storage_of(store), f"s3://{BUCKET}/g"

    def names(pattern: str) -> list[str]:
        return [match.name for match in storage.matches([f"{root}/{pattern}"], tmp_path)]

    assert names("*.tar") == ["a.tar", "b.tar"]
    assert names("**/*.tar") == ["a.tar", "b.tar", "deep/c.tar"]
    assert names("{b,a}.tar") == ["b.tar", "a.tar"]
    assert names("n-{00..11}") == [f"n-{i:02d}" for i in range(12)]
    assert storage.expand([f"{root}/a.tar"], tmp_path) == [f"{root}/a.tar"]
    with pytest.raises(SourceError, match=r"did you mean 'a.tar'"):
        names("aa.tar")
    with pytest.raises(SourceError, match=r"is a folder; name its files"):
        names("deep")


def test_media_beside_the_shard_and_below_media_root(store: Store, tmp_path: Path) -> None:
    store.put("m/rows.jsonl", json.dumps({"text": "one", "image": "pictures/1.png"}).encode())
    store.put("m/pictures/1.png", b"beside")
    store.put("other/pictures/1.png", b"elsewhere")
    source = Source(format="jsonl", path=f"s3://{BUCKET}/m/rows.jsonl", text="text", image="image")
    storage = storage_of(store)
    reader = SourceReader("s", source, tmp_path, None, 0, storage=storage)
    assert reader.read_media("pictures/1.png", reader.index.paths[0]) == b"beside"
    with pytest.raises(BadSample, match="key 'm/none.png'"):
        reader.read_media("none.png", reader.index.paths[0])
    with pytest.raises(BadSample, match="leads out"):
        reader.read_media("../../secret/x", reader.index.paths[0])
    moved = source.model_copy(update={"media_root": f"s3://{BUCKET}/other"})
    reader = SourceReader("s", moved, tmp_path, None, 0, storage=storage)
    assert reader.read_media("pictures/1.png", reader.index.paths[0]) == b"elsewhere"


def test_a_web_server_is_read_in_ranges_too(store: Store) -> None:
    data = bytes(range(256)) * 16
    store.put("web.bin", data)
    url = f"{store.url}/{BUCKET}/web.bin"
    assert storage_of(store).read_range(url, 300, 5) == data[300:305]
    assert [request.sent for request in store.gets("web.bin")][-1] == 5
    store.fail(INTERNAL, times=2, part="web.bin")
    assert storage_of(store).read_all(url) == data


def job_in(store: Store, where: str, data: Path, tmp_path: Path) -> Path:
    """The tiny job with its sources in the bucket."""
    values = job_values(data, index_cache=str(tmp_path / "index"))
    for source in values["sources"].values():
        source["path"] = source["path"].replace(str(data), where)
    values["storage"] = {
        "options": {"s3": {"endpoint_url": store.url}},
        "cache": str(tmp_path / "cache"),
        "retries": 2,
    }
    tmp_path.mkdir(exist_ok=True)
    return write_config(tmp_path / "job.yaml", values)


def first_steps(served: Served) -> list[dict[str, list[int]]]:
    with DataServiceLoader(served.address, job="tiny") as loader:
        batches = [batch for step in range(3) for batch in loader.read(step)]
    assert len(batches) > 3
    names = ("input_ids", "labels", "loss_weight", "cu_seqlens", "pixel_values")
    return [{name: getattr(batch, name).tolist() for name in names} for batch in batches]


def test_check_reads_a_mixture_in_the_store(store: Store, data: Path, tmp_path: Path) -> None:
    config = job_in(store, store.upload(data, "job/"), data, tmp_path)
    done = run_cli("check", config, "--json", **CREDENTIALS)
    assert done.returncode == 0, done.stderr
    rows = {name: report["rows"] for name, report in json.loads(done.stdout)["sources"].items()}
    assert rows == {"notes": 120, "pages": 60, "photos": 48}
    assert any((tmp_path / "cache").rglob("*-0"))


def test_a_job_gives_the_same_steps_as_from_the_disk(store: Store, data: Path, tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    with serve(write_config(tmp_path / "local" / "job.yaml", job_values(data))) as served:
        local = first_steps(served)
    config = job_in(store, store.upload(data, "served/"), data, tmp_path / "remote")
    with serve(config, **CREDENTIALS) as served:
        assert first_steps(served) == local
