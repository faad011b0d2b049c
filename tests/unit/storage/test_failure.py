import errno

import pytest

from dataloader_svc.errors import SourceError, Unreachable
from dataloader_svc.storage.failure import (
    Kind,
    Truncated,
    as_source_error,
    failure_of,
    is_transient,
    is_transport,
)


class Botocore(Exception):
    """As botocore.exceptions.ClientError carries what the server said."""

    def __init__(self, status, code, message=""):
        super().__init__(f"An error occurred ({code})")
        self.response = {
            "ResponseMetadata": {"HTTPStatusCode": status},
            "Error": {"Code": code, "Message": message},
        }


class Answered(Exception):
    """As aiohttp.ClientResponseError."""

    def __init__(self, status):
        super().__init__(f"{status}")
        self.status = status


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (caused(OSError(errno.EIO, "x"), Botocore(500, "InternalError")), Kind.AGAIN),
        (caused(OSError(errno.EBUSY, "x"), Botocore(503, "SlowDown")), Kind.AGAIN),
        (caused(TimeoutError("x"), Botocore(400, "RequestTimeout")), Kind.AGAIN),
        (caused(PermissionError("x"), Botocore(400, "ExpiredToken")), Kind.REFUSED),
        (caused(PermissionError("x"), Botocore(403, "AccessDenied")), Kind.REFUSED),
        (caused(FileNotFoundError("x"), Botocore(404, "NoSuchKey")), Kind.MISSING),
        (caused(FileNotFoundError("x"), Answered(500)), Kind.AGAIN),  # fsspec's http says so of a 500
        (caused(FileNotFoundError("x"), Answered(404)), Kind.MISSING),
        (caused(FileNotFoundError("x"), ConnectionRefusedError(111, "refused")), Kind.AGAIN),
        (FileNotFoundError("x"), Kind.MISSING),
        (PermissionError("x"), Kind.REFUSED),
        (Truncated("5 bytes of 10"), Kind.AGAIN),
        (TimeoutError(), Kind.AGAIN),
        (ConnectionResetError(104, "reset"), Kind.AGAIN),
        (OSError(errno.ENETUNREACH, "unreachable"), Kind.AGAIN),
    ],
)
def test_kinds(error, kind):
    assert failure_of(error).kind is kind
    assert is_transient(error) is (kind is Kind.AGAIN)


def test_real_libraries(monkeypatch):
    botocore = pytest.importorskip("botocore.exceptions")
    aiohttp = pytest.importorskip("aiohttp")
    assert failure_of(botocore.NoCredentialsError()).kind is Kind.REFUSED
    assert failure_of(botocore.EndpointConnectionError(endpoint_url="x")).kind is Kind.AGAIN
    cut = aiohttp.ClientPayloadError("Response payload is not completed")
    cut.__cause__ = aiohttp.http_exceptions.ContentLengthError("not enough data")  # has a `code` of 400
    assert is_transport(cut)
    assert is_transient(cut)


def test_our_own_mistakes_are_not_the_network():
    assert not is_transport(AssertionError())
    assert not is_transport(TypeError("x"))
    assert not is_transient(ValueError("x"))


def test_words():
    refused = as_source_error(
        "s3://b/k/x", caused(PermissionError("x"), Botocore(403, "AccessDenied", "No.")), ""
    )
    assert isinstance(refused, Unreachable)
    assert "refused (403 AccessDenied: No.): bucket 'b', key 'k/x'; renew the credentials" in str(refused)
    missing = as_source_error("gs://b/k", FileNotFoundError("x"), "")
    assert type(missing) is SourceError
    assert str(missing) == "gs://b/k: not found: bucket 'b', key 'k'; check the name"
    away = as_source_error("hf://datasets/a/b", TimeoutError(), "9 attempts in 61 s")
    assert isinstance(away, Unreachable)
    assert "no good answer in 9 attempts in 61 s, the last was: TimeoutError" in str(away)
