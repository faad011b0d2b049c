"""A real Redis is killed, full, locked, elsewhere, or another than was meant: nothing is lost or unsaid."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from dataloader_svc.errors import ConfigError, NotLeader, StoreConflict, StoreError
from dataloader_svc.store import Store, open_store
from dataloader_svc.store import redis as redis_store
from redis_server import RedisServer, free_port, needs_redis, redis_server

pytestmark = needs_redis
LOG = "plan/0"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as running:
        yield running


@pytest.fixture
def store(server: RedisServer, tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(server.url("job"), tmp_path)) as opened:
        yield opened


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PATIENCE_S", "PATIENCE_S"):
        monkeypatch.setattr(redis_store, name, 0.3)


def test_what_was_acknowledged_survives_kill_9(server: RedisServer, store: Store) -> None:
    lease = store.acquire("leader", "a", 100)
    assert lease is not None
    for seq in range(50):
        store.append(LOG, seq, b"record %d" % seq, fence=lease.token)
        store.put(f"key/{seq}", b"value")
        if seq % 10 == 5:
            server.kill()
            server.start()
    assert [record for _, record in store.read(LOG, 0, 100)] == [b"record %d" % seq for seq in range(50)]
    assert len(store.items("key/")) == 50
    assert store.renew(lease).token == lease.token


def test_a_call_waits_for_a_server_that_comes_back(server: RedisServer, store: Store) -> None:
    store.append(LOG, 0, b"before", fence=None)
    server.kill()
    restarted = threading.Timer(0.5, server.start)
    restarted.start()
    store.append(LOG, 1, b"after", fence=None)
    restarted.join()
    assert store.last(LOG) == (1, b"after")


def test_a_lost_server_is_an_error_that_says_what_is_at_risk(
    server: RedisServer, tmp_path: Path, impatient: None
) -> None:
    with closing(open_store(server.url("job"), tmp_path)) as store:
        store.append(LOG, 0, b"kept", fence=None)
        server.kill()
        with pytest.raises(
            StoreError, match=r"can't be reached for 0.3 s .*Nothing that was acknowledged is lost"
        ):
            store.append(LOG, 1, b"more", fence=None)
        with pytest.raises(StoreError, match="can't be reached"):
            open_store(server.url("job"), tmp_path)
        server.start()
        assert store.last(LOG) == (0, b"kept"), "the same object goes on"
        store.append(LOG, 1, b"more", fence=None)


def test_a_server_that_lost_its_data_fences_off_who_led(server: RedisServer, store: Store) -> None:
    lease = store.acquire("leader", "a", 100)
    assert lease is not None
    store.append(LOG, 0, b"r0", fence=lease.token)
    with closing(server.client()) as client:
        client.flushall()
    with pytest.raises(NotLeader):
        store.append(LOG, 1, b"r1", fence=lease.token)
    again = store.acquire("leader", "a", 100)
    assert again is not None
    assert again.token > lease.token, "no token is ever given twice"


def test_a_master_that_forgot_its_last_record_is_noticed(server: RedisServer, store: Store) -> None:
    """As after a failover to a replica that lagged behind."""
    store.append(LOG, 0, b"r0", fence=None)
    store.append(LOG, 1, b"r1", fence=None)
    with closing(server.client()) as client:
        (name,) = client.keys("*log:plan/0")
        client.xtrim(name, minid="1-0", approximate=False)
        client.xdel(name, "2-0")
    with pytest.raises(StoreConflict, match="record 2 does not follow the last, 0"):
        store.append(LOG, 2, b"r2", fence=None)


def test_a_damaged_value_is_noticed(server: RedisServer, store: Store) -> None:
    store.put("a", b"precious")
    with closing(server.client()) as client:
        (name,) = client.keys("*entries")
        value = client.hget(name, "a")
        assert isinstance(value, bytes)
        client.hset(name, "a", value[:-1] + b"!")
    with pytest.raises(StoreError, match=r"key a: the checksum does not match.*resume from a trainer's"):
        store.get("a")


def test_jobs_share_a_server(server: RedisServer, tmp_path: Path) -> None:
    with (
        closing(open_store(server.url("one"), tmp_path)) as one,
        closing(open_store(server.url("two"), tmp_path)) as two,
    ):
        one.append(LOG, 0, b"one", fence=None)
        assert two.last(LOG) is None
        assert one.acquire("leader", "a", 10)
        assert two.acquire("leader", "b", 10)


def test_time_to_live_by_the_servers_clock(server: RedisServer, store: Store) -> None:
    store.put("short", b"1", ttl_s=0.05)
    store.put("long", b"1", ttl_s=1000)
    with closing(server.client()) as client:
        until = _server_time(client) + 0.05
        while _server_time(client) < until:
            pass
    assert list(store.items("")) == ["long"]


def _server_time(client: redis.Redis) -> float:
    seconds, microseconds = client.time()  # type: ignore[misc]
    return float(seconds) + float(microseconds) / 1e6


def test_a_client_that_leaves_leaves_nothing(server: RedisServer, tmp_path: Path) -> None:
    with closing(open_store(server.url("job"), tmp_path)) as store:
        store.put("a", b"1")
        store.delete("a")
    with closing(server.client()) as client:
        assert client.keys("*") == []


# ---- settings


def test_full(server: RedisServer, tmp_path: Path, impatient: None) -> None:
    with (
        closing(server.client()) as client,
        closing(open_store(server.url("job"), tmp_path)) as store,
    ):
        store.put("a", b"1")
        client.config_set("maxmemory", "1mb")
        with pytest.raises(StoreError, match=r"it is full .*nothing was written. Raise its maxmemory"):
            store.append(LOG, 0, bytes(2**20), fence=None)
        assert store.last(LOG) is None
        client.config_set("maxmemory", "0")
        store.append(LOG, 0, bytes(2**20), fence=None)


def test_a_server_that_would_throw_the_log_away_is_refused(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis", "maxmemory 100mb", "maxmemory-policy allkeys-lru") as server,
        pytest.raises(StoreError, match=r"allkeys-lru would throw the plan log away.*noeviction"),
    ):
        open_store(server.url("job"), tmp_path)


def test_a_server_without_a_log_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        redis_server(tmp_path / "redis", "appendonly no") as server,
        caplog.at_level(logging.WARNING),
        closing(open_store(server.url("job"), tmp_path)),
    ):
        assert "appendonly is off: when Redis dies" in caplog.text


def test_password(tmp_path: Path, impatient: None) -> None:
    with redis_server(tmp_path / "redis", "requirepass s3cret") as server:
        url = f"redis://:s3cret@{server.address}/0?job=job"
        with closing(open_store(url, tmp_path)) as store:
            store.append(LOG, 0, b"r0", fence=None)
            server.kill()
            with pytest.raises(StoreError) as lost:
                store.append(LOG, 1, b"r1", fence=None)
            server.start()
        for wrong in (server.url("job"), url.replace("s3cret", "wrong")):
            with pytest.raises(StoreError, match="give user and password") as refused:
                open_store(wrong, tmp_path)
            assert "wrong" not in str(refused.value)
        assert "s3cret" not in str(lost.value)
        assert f"redis://***@{server.address}" in str(lost.value)


def test_replicas(tmp_path: Path) -> None:
    with redis_server(tmp_path / "master") as master:
        url = master.url("job") + "&replicas=1"
        with (
            redis_server(tmp_path / "replica", f"replicaof 127.0.0.1 {master.port}"),
            closing(open_store(url, tmp_path)) as store,
        ):
            store.append(LOG, 0, b"r0", fence=None)
        with closing(open_store(url, tmp_path)) as store, pytest.MonkeyPatch.context() as patch:
            patch.setattr(redis_store, "_REPLICAS_S", 0.2)
            with pytest.raises(StoreError, match="only 0 of 1 replicas confirmed a write"):
                store.append(LOG, 1, b"r1", fence=None)


# ---- other kinds of server


def test_tls(tmp_path: Path, impatient: None) -> None:
    certificate, key = _certificate(tmp_path)
    port = free_port()
    with (
        redis_server(
            tmp_path / "redis",
            f"tls-port {port}",
            f"tls-cert-file {certificate}",
            f"tls-key-file {key}",
            "tls-auth-clients no",
        ),
    ):
        url = f"rediss://localhost:{port}/0?job=job"
        with closing(open_store(f"{url}&ssl_ca_certs={certificate}", tmp_path)) as store:
            store.append(LOG, 0, b"r0", fence=None)
            assert store.last(LOG) == (0, b"r0")
        with pytest.raises(StoreError, match="certificate"):
            open_store(url, tmp_path)


def test_sentinel_finds_the_master_and_the_next_one(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "one") as one,
        redis_server(tmp_path / "two", f"replicaof 127.0.0.1 {one.port}") as two,
        _sentinel(tmp_path / "sentinel", one) as sentinel,
        closing(
            open_store(f"redis+sentinel://{sentinel.address}/main/0?job=job&replicas=1", tmp_path)
        ) as store,
    ):
        store.append(LOG, 0, b"r0", fence=None)
        one.kill()
        with pytest.raises(StoreError, match="only 0 of 1 replicas"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(redis_store, "_REPLICAS_S", 0.2)
            store.append(LOG, 1, b"r1", fence=None)
        with closing(two.client()) as client:
            assert client.info("replication")["role"] == "master"  # type: ignore[index]
        assert store.read(LOG, 0, 9) == [(0, b"r0"), (1, b"r1")]


@contextlib.contextmanager
def _sentinel(folder: Path, master: RedisServer) -> Iterator[RedisServer]:
    sentinel = RedisServer(folder)
    sentinel.lines = [
        "bind 127.0.0.1",
        f"dir {folder}",
        f"port {sentinel.port}",
        f"sentinel monitor main 127.0.0.1 {master.port} 1",
        "sentinel down-after-milliseconds main 500",
        "sentinel failover-timeout main 2000",
    ]
    sentinel.start("--sentinel")
    with contextlib.closing(sentinel.client()) as client:
        while client.execute_command("SENTINEL", "MASTER", "main")[b"num-slaves"] == b"0":  # type: ignore[index]
            pass
    try:
        yield sentinel
    finally:
        sentinel.kill()


def test_cluster(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", "cluster-enabled yes", f"cluster-port {free_port()}") as server:
        with closing(server.client()) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while client.execute_command("CLUSTER", "INFO").find(b"cluster_state:ok") < 0:
                pass
        with closing(open_store(f"redis+cluster://{server.address}?job=job", tmp_path)) as store:
            lease = store.acquire("leader", "a", 10)
            assert lease is not None
            store.append(LOG, 0, b"r0", fence=lease.token)
            store.put_many({f"key/{number}": b"v" for number in range(5000)})
            assert len(store.items("key/")) == 5000
            server.kill()
            server.start()
            store.append(LOG, 1, b"r1", fence=lease.token)
            assert store.read(LOG, 0, 9) == [(0, b"r0"), (1, b"r1")]


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis:host", "write 'redis://HOST:PORT'"),
        ("redis://127.0.0.1:1/0?replicas=two", "replicas must be a number"),
        ("redis+cluster://127.0.0.1:1?replicas=1", "0 with a cluster"),
        ("redis+sentinel://127.0.0.1:1", "name of the service"),
        ("redis://127.0.0.1:1/0?colour=red", "colour"),
    ],
)
def test_malformed_urls(tmp_path: Path, url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_store(url, tmp_path)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of localhost that signs itself, and its key."""
    import datetime as dt

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, encryption_algorithm=serialization.NoEncryption()
        )
    )
    return folder / "cert.pem", folder / "key.pem"
