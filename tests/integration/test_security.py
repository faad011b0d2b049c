"""Real services with secrets: who may read reads, nobody else does, and no secret is to be seen anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from certificates import Authority
from dataloader_client import TLS, AccessDeniedError, DataServiceLoader, StateMismatchError, methods
from dataloader_svc.config.load import load_config
from dataloader_svc.engine.spec import JobSpec, job_spec
from dataloader_svc.store.open import open_store
from real_job import Served, job_values, run_cli, serve, write_config

CANARY = "canary-90d1fe22c7aa41"
OTHER = "another-3b5e0a7711cd42"


def take(address: str, steps: int = 2, **options: Any) -> list[str]:
    """Digests of the first steps."""
    with DataServiceLoader(address, **options) as loader:
        return [loader.read(step)[0].digest for step in range(steps)]


def addresses(config: Path) -> dict[str, str]:
    """Of all roles, by their key in the store."""
    loaded = load_config(config, {"TOKEN": CANARY})
    with closing(open_store(job_spec(loaded, config.parent, "127.0.0.1:0").store, config.parent)) as store:
        return {key: json.loads(value)["address"] for key, value in store.items("endpoint/").items()}


@pytest.fixture(scope="module")
def guarded(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A service whose token is CANARY; another service of the same data has OTHER."""
    config = write_config(
        tmp_path_factory.mktemp("guarded") / "job.yaml",
        job_values(data, security={"token": "${TOKEN}"}),
    )
    with serve(config, TOKEN=CANARY) as served:
        yield served, config


def test_the_token_opens(guarded: tuple[Served, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    served, _ = guarded
    digests = take(served.address, token=CANARY)
    monkeypatch.setenv("DATALOADER_TOKEN", CANARY)
    assert take(served.address) == digests
    with pytest.raises(StateMismatchError, match="this service serves job 'tiny', not 'large'"):
        take(served.address, job="large")


def test_nothing_else_does(guarded: tuple[Served, Path], data: Path, tmp_path: Path) -> None:
    """No token, a wrong one, that of another job; each of them hears it at once."""
    served, _ = guarded
    with pytest.raises(AccessDeniedError, match="asks for a token: give DataServiceLoader token="):
        take(served.address)
    with pytest.raises(AccessDeniedError, match="the token is not this service's") as caught:
        take(served.address, token=OTHER)
    assert CANARY not in str(caught.value)
    (tmp_path / "token").write_text(OTHER)
    values = job_values(data, job="other", security={"token_file": "token"})
    with serve(write_config(tmp_path / "job.yaml", values)) as other:
        assert take(other.address, 1, token=OTHER)
        with pytest.raises(AccessDeniedError):
            take(other.address, token=CANARY)
        with pytest.raises(AccessDeniedError):
            take(served.address, token=OTHER)


def test_no_role_answers_without_the_token_of_the_run(guarded: tuple[Served, Path]) -> None:
    """The token of trainers opens no other role: they hold the same data, on ports of the same machine."""
    _, config = guarded
    roles = {"planner": methods.PLANNER_STATUS, "loader": methods.LOADER_STATUS}
    tried = 0
    for key, address in addresses(config).items():
        role = key.split("/")[1]
        if role == "constructor":
            continue
        with grpc.insecure_channel(address) as channel:
            for metadata in ((), (("authorization", f"Bearer {CANARY}"),)):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(roles[role].path)(b"", metadata=metadata, timeout=60)
                assert isinstance(caught.value, grpc.Call)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                tried += 1
    assert tried == 6, "a planner and two loaders"


def test_the_secret_is_nowhere_to_be_seen(guarded: tuple[Served, Path]) -> None:
    """Neither in what is printed, logged or answered, nor in a command line; with failures of many kinds."""
    served, config = guarded
    role_token = JobSpec.read(served.run_dir / "job.json").role_token
    with pytest.raises(AccessDeniedError) as denied:
        take(served.address, token=OTHER)
    said = [str(denied.value)]
    with grpc.insecure_channel(served.address) as channel:
        for method in (methods.JOIN, methods.READ, methods.LEAVE, methods.CONSTRUCTOR_STATUS):
            for request in (b"", b"\xff" * 50):
                call = channel.unary_stream(method.path)
                try:
                    answers = call(request, metadata=(("authorization", f"Bearer {CANARY}"),), timeout=60)
                    said.append(repr(list(answers)))
                except grpc.RpcError as error:
                    said.append(str(error))
    roles = served.roles()
    said += [
        " ".join(process.cmdline()) for process in (psutil.Process(served.process.pid), *served.family())
    ]
    roles["loader-0"].kill()
    served.wait_said("loader-0 is back")
    for command in (
        ("check", config),
        ("check", config, "--json"),
        ("explain", config, "--step", 0, "--rank", 0),
        ("serve", config, "--address", "127.0.0.1:0"),
        ("serve", config, "--address", "nowhere.invalid:1"),
        ("quarantine", config),
    ):
        done = run_cli(*command, TOKEN=CANARY)
        said += [done.stdout, done.stderr]
    wrong = run_cli("check", config, TOKEN=f"{CANARY} {CANARY}")
    assert wrong.returncode == 1
    said += [wrong.stdout, wrong.stderr, served.stderr, served.logs()]
    for text in said:
        assert CANARY not in text
        assert role_token not in text
    assert any("job 'tiny' is being served already" in text for text in said)
    files = [path for path in config.parent.rglob("*") if path.is_file()]
    for secret in (CANARY, role_token):
        holding = {path.name for path in files if secret.encode() in path.read_bytes()}
        assert holding == {"job.json"}, "the one file that roles read it from"


def test_mutual_tls_to_the_last_process(data: Path, tmp_path: Path) -> None:
    """Trainers and roles show certificates; so does nobody else."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    service, trainer = authority.issue("service"), authority.issue("trainer")
    strange = stranger.issue("strange")
    tls = {
        "certificate": service.certificate.name,
        "key": service.key.name,
        "client_ca": authority.pem.name,
        "between_roles": True,
    }
    config = write_config(tmp_path / "job.yaml", job_values(data, security={"tls": tls}))
    with serve(config) as served:
        assert take(served.address, tls=TLS(authority.pem, trainer.certificate, trainer.key))
        for refused in (TLS(authority.pem), TLS(authority.pem, strange.certificate, strange.key), False):
            with pytest.raises(Exception, match="wants TLS, or a certificate of the client"):
                take(served.address, tls=refused, connect_timeout_s=2.0)
        for key, address in addresses(config).items():
            with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/any/Call")(b"", timeout=60)
            assert isinstance(caught.value, grpc.Call)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, f"{key} speaks without TLS"


def test_an_address_that_others_reach_is_refused(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    done = run_cli("serve", config, "--address", "0.0.0.0:0")
    assert done.returncode == 2
    assert "can be reached from other machines" in done.stderr
    assert "security.token_file" in done.stderr


def test_commands_that_run_a_job_for_a_moment(data: Path, tmp_path: Path) -> None:
    """Whatever the configuration asks of trainers, and whatever the environment says."""
    tls = {"certificate": "s.pem", "key": "s.key"}
    Authority(tmp_path).issue("s")
    config = write_config(tmp_path / "job.yaml", job_values(data, security={"token": "${TOKEN}", "tls": tls}))
    extra = {"TOKEN": CANARY, "DATALOADER_TOKEN": OTHER, "DATALOADER_TLS_CA": "nothing"}
    done = run_cli("preview", config, "--json", **extra)
    assert done.returncode == 0, done.stderr
    assert CANARY not in done.stdout + done.stderr


def test_a_trainer_notices_another_job_at_its_address(data: Path, tmp_path: Path) -> None:
    """The service ends, and another job's comes to its port: numbers of sessions are alike, data is not."""
    one = write_config(tmp_path / "one.yaml", job_values(data, job="one"))
    two = write_config(tmp_path / "two.yaml", job_values(data, job="two", seed=6))
    with serve(one) as served:
        loader = DataServiceLoader(served.address, timeout_s=60)
        assert loader.read(0)
        served.stop()
    with serve(two, "--address", served.address):
        with DataServiceLoader(served.address) as other:
            assert other.read(0)
        with loader, pytest.raises(StateMismatchError, match="serves job 'two', not 'one'"):
            loader.read(1)
