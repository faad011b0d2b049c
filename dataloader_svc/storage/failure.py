"""What a failed request to a store means: try again, give up, or it is not there. And how to say so.

Libraries wrap each other's errors (a server's 500 may arrive as FileNotFoundError), so the HTTP status is
looked for in the whole chain of causes before the type of the error counts. Imports none of the libraries:
any may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from dataloader_svc.errors import SourceError, Unreachable
from dataloader_svc.storage.patterns import after_scheme, scheme_of

_AGAIN = frozenset({408, 409, 425, 429})
_AGAIN_CODES = frozenset({"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"})
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
        "ProfileNotFound",
        "DefaultCredentialsError",
        "RefreshError",
    }
)
_TRANSPORTS = frozenset(
    {
        "botocore",
        "aiobotocore",
        "aiohttp",
        "gcsfs",
        "google",
        "huggingface_hub",
        "httpx",
        "httpx2",
        "requests",
    }
)
_REMEDIES = {
    "s3": "renew the credentials (AWS_PROFILE, or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
    "AWS_SESSION_TOKEN) and check that they may read the bucket",
    "gs": "renew the credentials (GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login) "
    "and check that they may read the bucket",
    "hf": "set HF_TOKEN to a token that may read the repository",
}


class Truncated(OSError):
    """A body ended before the length that was promised."""


class Kind(Enum):
    """What to do about it."""

    AGAIN = "again"
    MISSING = "missing"
    REFUSED = "refused"


class Failure(NamedTuple):
    """`text`: status, code and message, as far as the server gave them."""

    kind: Kind
    text: str


def is_transport(error: BaseException) -> bool:
    """Whether an error tells of the request, and not of a mistake of ours."""
    modules = (cls.__module__.partition(".")[0] for cls in type(error).__mro__)
    return isinstance(error, OSError | TimeoutError) or any(module in _TRANSPORTS for module in modules)


def failure_of(error: BaseException) -> Failure:
    """What an error for which `is_transport` holds means."""
    chain = list(_chain(error))
    for link in chain:
        status, code, message = _answer(link)
        if status is not None:
            words = " ".join(str(part) for part in (status, code) if part and part != str(status))
            return Failure(_kind(status, code), f"{words}: {message}" if message else words)
    names = {type(link).__name__ for link in chain}
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    if names & _NO_CREDENTIALS:
        return Failure(Kind.REFUSED, text)
    beneath = [link for link in chain[1:] if is_transport(link)]
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError) and not beneath:
        return Failure(Kind.MISSING, "not found")
    if isinstance(error, PermissionError) and not beneath:
        return Failure(Kind.REFUSED, text)
    deepest = beneath[-1] if beneath else error
    return Failure(Kind.AGAIN, str(deepest).strip().partition("\n")[0] or type(deepest).__name__)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may do better in a while."""
    return is_transport(error) and failure_of(error).kind is Kind.AGAIN


def as_source_error(url: str, error: BaseException, tried: str) -> SourceError:
    """The error to raise: names bucket, key and remedy. `tried`: "8 attempts in 61 s"."""
    failure = failure_of(error)
    where = _place(url)
    if failure.kind is Kind.MISSING:
        return SourceError(f"{url}: {failure.text}{where}; check the name")
    if failure.kind is Kind.REFUSED:
        remedy = _REMEDIES.get(scheme_of(url) or "", "check that it may be read from here")
        return Unreachable(f"{url}: refused ({failure.text}){where}; {remedy}")
    return Unreachable(
        f"{url}: no good answer in {tried}, the last was: {failure.text}{where}; check the network and the "
        "endpoint, or raise storage.retries and storage.deadline"
    )


def _place(url: str) -> str:
    if scheme_of(url) not in ("s3", "gs"):
        return ""
    bucket, _, key = after_scheme(url).partition("/")
    return f": bucket {bucket!r}, key {key!r}"


def _kind(status: int, code: str | None) -> Kind:
    if status >= 500 or status in _AGAIN or code in _AGAIN_CODES:
        return Kind.AGAIN
    return Kind.MISSING if status in (404, 410, 416) else Kind.REFUSED


def _answer(error: BaseException) -> tuple[int | None, str | None, str]:
    """(HTTP status, the store's code, message) where the error carries a server's answer."""
    response: object = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        told = response.get("Error", {})
        return status, told.get("Code"), str(told.get("Message") or "")
    # aiohttp; requests and the like; gcsfs. The `code` of aiohttp's errors is no answer of the server: it is
    # 400 for a body that was cut on the way.
    places = [(error, "status"), (response, "status_code")]
    places += [(error, "code")] if type(error).__module__.startswith("gcsfs") else []
    for holder, name in places:
        value = getattr(holder, name, None)
        if isinstance(value, int) and 100 <= value <= 599:
            message = getattr(error, "message", None) or str(error)
            return value, None, str(message).strip().partition("\n")[0]
    return None, None, ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
