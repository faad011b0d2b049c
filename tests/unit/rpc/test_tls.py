"""TLS and mutual TLS: who is trusted gets through, all others get an error that says what to do, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from certificates import Authority, Issued
from dataloader_client import TLS, AccessDeniedError, ServiceUnavailableError, methods
from dataloader_client._pb import common_pb2, plan_pb2
from dataloader_client.credentials import Credentials
from dataloader_client.transport import Transport
from dataloader_svc.errors import ConfigError, PeerError
from dataloader_svc.rpc.access import Access, Guard, ServerTls
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.stubs import Peer


class Planner:
    """`Join` is the constructor's too, as far as the message goes."""

    async def join(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        return plan_pb2.JoinResponse(job=request.job or "web")

    async def other(self, _: common_pb2.Empty) -> common_pb2.Empty:
        return common_pb2.Empty()

    read = leave = report = status = other


def with_service(tls: ServerTls | None, client: Callable[[str], None]) -> None:
    async def scenario() -> None:
        server, address = await start_server(
            {methods.CONSTRUCTOR: Planner()}, "127.0.0.1:0", access=Access(Guard(), tls)
        )
        try:
            await asyncio.to_thread(client, address)
        finally:
            await server.stop(None)

    asyncio.run(scenario())


def join(address: str, tls: TLS | None, timeout_s: float = 60.0) -> str:
    transport = Transport(address, timeout_s=60, credentials=Credentials(tls=tls))
    try:
        return str(transport.join(plan_pb2.JoinRequest(job="web"), timeout_s=timeout_s).job)
    finally:
        transport.close()


def server_tls(issued: Issued, client_ca: Path | None = None) -> ServerTls:
    return ServerTls(issued.certificate, issued.key, client_ca)


def test_tls(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "stranger")

    def client(address: str) -> None:
        assert join(address, TLS(ca=ours.pem)) == "web"
        assert join(address.replace("127.0.0.1", "localhost"), TLS(ca=ours.pem)) == "web"
        for untrusted in (TLS(ca=theirs.pem), TLS()):
            with pytest.raises(AccessDeniedError, match=f"{address}: its certificate is not accepted"):
                join(address, untrusted)
        with pytest.raises(ServiceUnavailableError, match="so closes a service that wants TLS"):
            join(address, None, timeout_s=2.0)

    with_service(server_tls(ours.issue("server")), client)


def test_another_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def client(address: str) -> None:
        with pytest.raises(AccessDeniedError, match=r"another name: connect by that, or give it as name="):
            join(address, TLS(ca=authority.pem))
        assert join(address, TLS(ca=authority.pem, name="loader.internal")) == "web"

    with_service(server_tls(authority.issue("server", names=("loader.internal",))), client)


def test_an_expired_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def client(address: str) -> None:
        with pytest.raises(AccessDeniedError, match=r"certificate has expired\): check ca= of tls="):
            join(address, TLS(ca=authority.pem))

    with_service(server_tls(authority.issue("server", expired=True)), client)


def test_tls_to_a_plain_service(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def client(address: str) -> None:
        with pytest.raises(AccessDeniedError, match="does not speak TLS: leave tls= out"):
            join(address, TLS(ca=authority.pem))

    with_service(None, client)


def test_mutual_tls(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "stranger")
    mine, strange = ours.issue("mine"), theirs.issue("strange")

    def client(address: str) -> None:
        assert join(address, TLS(ours.pem, mine.certificate, mine.key)) == "web"
        for refused in (TLS(ours.pem), TLS(ours.pem, strange.certificate, strange.key)):
            with pytest.raises(ServiceUnavailableError, match="wants TLS, or a certificate of the client"):
                join(address, refused, timeout_s=2.0)

    with_service(server_tls(ours.issue("server"), ours.pem), client)


def test_roles_by_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("role", names=("role.internal",))
    tls = TLS(authority.pem, issued.certificate, issued.key, "role.internal")

    async def scenario() -> None:
        access = Access(Guard(), server_tls(issued, authority.pem))
        server, address = await start_server({methods.CONSTRUCTOR: Planner()}, "127.0.0.1:0", access=access)
        async with Peer(address, "constructor", Credentials(tls=tls)) as peer:
            await peer.call(methods.CONSTRUCTOR_STATUS, common_pb2.Empty(), timeout_s=60)
        async with Peer(address, "constructor") as peer:
            with pytest.raises(PeerError, match="constructor at"):
                await peer.call(methods.CONSTRUCTOR_STATUS, common_pb2.Empty(), timeout_s=60)
        await server.stop(None)

    asyncio.run(scenario())


def test_certificates_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new certificate, by a new authority; a half-written pair between them changes nothing."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    first = old.issue("server")

    def client(address: str) -> None:
        assert join(address, TLS(ca=old.pem)) == "web"
        before = first.key.read_bytes()
        new.issue("server")
        after = first.key.read_bytes()
        first.key.write_bytes(before)
        assert join(address, TLS(ca=old.pem)) == "web"
        assert "the certificate of before is still used" in caplog.text
        first.key.write_bytes(after)
        assert join(address, TLS(ca=new.pem)) == "web"
        with pytest.raises(AccessDeniedError):
            join(address, TLS(ca=old.pem))

    with_service(server_tls(first), client)


def test_certificates_that_are_no_use_are_named_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"security\.tls: certificate .*a\.pem: can't be read"):
        ServerTls(tmp_path / "a.pem", tmp_path / "a.key").credentials()
