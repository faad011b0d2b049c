"""What a job asks of its callers follows from `security:`; an address that others reach is not left open."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority
from dataloader_client.credentials import TLS
from dataloader_svc.config.load import load_config, read_config
from dataloader_svc.config.schema import Security
from dataloader_svc.engine.access import check_access, is_loopback, role_access, role_credentials
from dataloader_svc.engine.spec import JobSpec, job_spec, private
from dataloader_svc.errors import AccessDenied, ConfigError
from real_job import job_values, write_config

CANARY = "canary-2c9e41d07f"


def spec_of(folder: Path, address: str = "127.0.0.1:0", **security: Any) -> JobSpec:
    config = write_config(folder / "job.yaml", job_values(folder, security=security))
    return job_spec(load_config(config, {"TOKEN": CANARY}), folder, address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.3.2.1:1", "localhost:1", "[::1]:1"])
def test_loopback_needs_nothing(tmp_path: Path, address: str) -> None:
    assert is_loopback(address)
    check_access(spec_of(tmp_path, address))


@pytest.mark.parametrize("address", ["0.0.0.0:7077", "[::]:7077", "192.0.2.1:7077", "::7077"])
def test_other_addresses_need_to_know_who_calls(tmp_path: Path, address: str) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    pair = {"certificate": str(issued.certificate), "key": str(issued.key)}
    said = r"--address .* can be reached from other machines.*security\.token_file.*allow_anyone: true"
    for nobody_known in ({}, {"tls": pair}, {"max_calls": 5}):
        with pytest.raises(ConfigError, match=said):
            check_access(spec_of(tmp_path, address, **nobody_known))
    (tmp_path / "token").write_text(CANARY)
    for known in (
        {"token": "${TOKEN}"},
        {"token_file": "token"},
        {"tls": {**pair, "client_ca": str(authority.pem)}},
        {"allow_anyone": True},
    ):
        check_access(spec_of(tmp_path, address, **known))


def test_files_that_are_no_use_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^security\.token file {tmp_path}/token: can't be read"):
        check_access(spec_of(tmp_path, token_file="token"))
    with pytest.raises(ConfigError, match=rf"^security\.tls: certificate {tmp_path}/a: can't be read"):
        check_access(spec_of(tmp_path, tls={"certificate": "a", "key": "b"}))


def test_roles_know_each_other_by_a_token_of_the_run(tmp_path: Path) -> None:
    one, two = spec_of(tmp_path), spec_of(tmp_path)
    assert one.role_token != two.role_token
    assert len(one.role_token) == 64
    header = [("authorization", f"Bearer {one.role_token}")]
    assert role_credentials(one).metadata("") == tuple(header)
    with role_access(one).guard.call(header, str):
        pass
    with pytest.raises(AccessDenied), role_access(two).guard.call(header, str):
        pytest.fail("it was let in")
    assert role_credentials(one).tls is None
    assert role_access(one).tls is None


def test_roles_speak_tls_where_they_are_told_to(tmp_path: Path) -> None:
    tls = {"certificate": "s.pem", "key": "s.key", "client_ca": "ca.pem", "between_roles": True, "name": "n"}
    spec = spec_of(tmp_path, tls=tls)
    expected = TLS(tmp_path / "ca.pem", tmp_path / "s.pem", tmp_path / "s.key", "n")
    assert role_credentials(spec).tls == expected
    server = role_access(spec).tls
    assert server is not None
    assert (server.certificate, server.client_ca) == (expected.certificate, expected.ca)


def test_the_spec_of_the_roles_is_for_their_owner(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "job.json").chmod(0o666)
    spec = spec_of(tmp_path, token="${TOKEN}")
    path = spec.write()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = JobSpec.read(path)
    assert again == spec
    assert again.role_token == spec.role_token
    token = again.config.security.token
    assert token is not None
    assert token.get_secret_value() == CANARY


def test_no_text_shows_a_secret(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, token="${TOKEN}")
    shown = f"{spec!r} {spec.config!r} {spec.config.model_dump_json()} {spec.config.model_dump()}"
    assert CANARY not in shown
    assert spec.role_token not in shown
    assert json.loads(spec.config.model_dump_json())["security"]["token"] == "*" * 10


def test_a_job_for_a_moment_has_a_token_that_nobody_else_has(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, token="${TOKEN}", tls={"certificate": "a", "key": "b"})
    one, two = private(spec), private(spec)
    secrets = [spec.config.security.token for spec in (one, two)]
    tokens = {"" if secret is None else secret.get_secret_value() for secret in secrets}
    assert len(tokens) == 2
    assert CANARY not in tokens
    assert one.config.security.tls is None
    assert replace(one, config=spec.config) == spec


@pytest.mark.parametrize(
    ("security", "said"),
    [
        ({"token": "${SHORT}"}, "security.token: a token has at least 16 printable ASCII letters"),
        ({"token": "${SPACES}"}, "security.token: a token has at least 16 printable ASCII letters"),
        ({"token": CANARY}, "security.token: a secret is not written here: ${NAME}, from the environment"),
        ({"token": "${MISSING}"}, "security.token: environment variable MISSING is not set"),
        ({"token": ["${TOKEN}"]}, "security.token: a secret is not written here"),
        ({"token": "${TOKEN}", "token_file": "x"}, "security: give one of token and token_file"),
        ({"max_calls": "${TOKEN}"}, "security.max_calls: input should be a valid integer, unable to parse"),
        ({"max_request": "${TOKEN}"}, "security.max_request: expected a size such as"),
        ({"tls": {"certificate": "a", "key": "b", "between_roles": True}}, "between_roles needs `client_ca`"),
        ({"toke": "${TOKEN}"}, "security.toke: unknown field; did you mean 'token'?"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(
    tmp_path: Path, security: dict[str, Any], said: str
) -> None:
    environ = {"TOKEN": CANARY, "SHORT": CANARY[:15], "SPACES": f"{CANARY} {CANARY}"}
    config = write_config(tmp_path / "job.yaml", job_values(tmp_path, security=security))
    _, problems = read_config(config, environ)
    assert any(said in problem for problem in problems), problems
    assert CANARY[:15] not in "\n".join(problems)


def test_what_comes_from_the_environment_is_shown_as_it_was_written(tmp_path: Path) -> None:
    values = job_values(tmp_path, sequence_length="${TOKEN}", store="${STORE}")
    _, problems = read_config(write_config(tmp_path / "job.yaml", values), {"TOKEN": CANARY, "STORE": "x"})
    assert any("sequence_length" in line and "(found '${TOKEN}')" in line for line in problems), problems
    assert CANARY not in "\n".join(problems)


def test_who_calls_is_known_by_token_or_certificate() -> None:
    assert not Security().knows_callers
    assert Security(token_file="x").knows_callers
