"""What a client shows comes from arguments, else from the environment, and stands in no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from certificates import Authority
from dataloader_client import TLS, AccessDeniedError, DataServiceError
from dataloader_client.credentials import Credentials, read_authorities, read_pair

CANARY = "canary-7b1f"


def header(credentials: Credentials) -> str | None:
    return dict(credentials.metadata("")).get("authorization")


@pytest.mark.parametrize(
    ("token", "environ", "expected"),
    [
        (None, {}, None),
        ("given", {"DATALOADER_TOKEN": "other"}, "Bearer given"),
        (None, {"DATALOADER_TOKEN": "set", "DATALOADER_TOKEN_FILE": "/nowhere"}, "Bearer set"),
        (None, {"DATALOADER_TOKEN": "", "DATALOADER_TOKEN_FILE": ""}, None),
    ],
)
def test_where_the_token_comes_from(token: str | None, environ: dict[str, str], expected: str | None) -> None:
    assert header(Credentials.of(token, environ=environ)) == expected


def test_a_token_file_is_read_at_each_call(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\ntwo\n")
    credentials = Credentials.of(environ={"DATALOADER_TOKEN_FILE": str(file)})
    assert header(credentials) == "Bearer one"
    file.write_text("two\n")
    assert header(credentials) == "Bearer two"
    file.unlink()
    with pytest.raises(DataServiceError, match=f"token file {file}: can't be read: No such file"):
        credentials.metadata("")


@pytest.mark.parametrize(
    ("tls", "environ", "expected"),
    [
        (None, {}, None),
        (None, {"DATALOADER_TLS": "1"}, TLS()),
        (None, {"DATALOADER_TLS": "0", "DATALOADER_TLS_CA": "ca"}, None),
        (None, {"DATALOADER_TLS_CA": "ca", "DATALOADER_TLS_NAME": "n"}, TLS(ca="ca", name="n")),
        (
            None,
            {"DATALOADER_TLS_CERTIFICATE": "c", "DATALOADER_TLS_KEY": "k"},
            TLS(certificate="c", key="k"),
        ),
        (False, {"DATALOADER_TLS": "1"}, None),
        (True, {"DATALOADER_TLS_CA": "ca"}, TLS()),
        ("ca.pem", {"DATALOADER_TLS_CA": "ca"}, TLS(ca=Path("ca.pem"))),
        (TLS(name="x"), {"DATALOADER_TLS_CA": "ca"}, TLS(name="x")),
    ],
)
def test_where_tls_comes_from(tls: Any, environ: dict[str, str], expected: TLS | None) -> None:
    assert Credentials.of(tls=tls, environ=environ).tls == expected


def test_a_word_that_is_neither_is_refused() -> None:
    with pytest.raises(DataServiceError, match="DATALOADER_TLS is 'yes': 1 asks for TLS"):
        Credentials.of(environ={"DATALOADER_TLS": "yes"})


@pytest.mark.parametrize("token", [f"{CANARY} x", f"{CANARY}\n", f"{CANARY}é", ""])
def test_a_token_that_can_not_be_sent_is_refused_unseen(token: str) -> None:
    with pytest.raises(DataServiceError, match="printable ASCII") as caught:
        Credentials.of(token)
    assert CANARY not in str(caught.value)


def test_no_text_shows_the_token() -> None:
    assert CANARY not in f"{Credentials.of(CANARY)!r} {Credentials.of(CANARY)}"


def test_the_job_is_named_beside_it() -> None:
    assert Credentials("t").metadata("a b") == (("dataloader-job", "a%20b"), ("authorization", "Bearer t"))
    assert Credentials().metadata("") == ()


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two = authority.issue("one"), authority.issue("two")
    assert read_pair(one.certificate, one.key) == (one.certificate.read_bytes(), one.key.read_bytes())
    with pytest.raises(DataServiceError, match=r"one\.pem and key .*two\.key .*KEY_VALUES_MISMATCH"):
        read_pair(one.certificate, two.key)
    locked = authority.issue("locked", password=b"secret")
    with pytest.raises(DataServiceError, match=r"locked\.key .*: the key is encrypted: write it without"):
        read_pair(locked.certificate, locked.key)
    with pytest.raises(DataServiceError, match=r"key .*nothing\.key: can't be read: No such file"):
        read_pair(one.certificate, tmp_path / "nothing.key")
    for name, text in (
        ("text.pem", b"hello"),
        ("binary.pem", b"\xff\x00"),
        ("key.pem", one.key.read_bytes()),
    ):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(DataServiceError, match=f"certificates .*{name}: holds no PEM certificate"):
            read_authorities(tmp_path / name)
        with pytest.raises(DataServiceError, match=f"certificate .*{name} and key"):
            read_pair(tmp_path / name, one.key)
    with pytest.raises(DataServiceError, match="go together"):
        TLS(certificate=one.certificate).channel_credentials()


def test_what_is_denied_is_an_error_of_the_service() -> None:
    assert issubclass(AccessDeniedError, DataServiceError)
