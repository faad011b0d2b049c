"""From a job's `security:` to what its servers ask for and its callers show.

Trainers call constructors, with what the configuration says. Roles call each other with a token that is made
at each start and stands in `job.json` alone: on the loopback address too, where every user of the machine
could otherwise fetch what the public address refuses him.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from dataloader_client.credentials import TLS, Credentials
from dataloader_svc.config.schema import Config, Security
from dataloader_svc.engine.spec import JobSpec
from dataloader_svc.errors import ConfigError
from dataloader_svc.rpc.access import Access, Guard, ServerTls, Tokens

ROLE_MAX_REQUEST = 64 << 20
"""Bytes: of a role's requests the names of a step's samples are the largest, some 30 bytes a sample."""


def public_access(config: Config, base_dir: Path) -> Access:
    """Of a constructor. ConfigError names the file that can't be used."""
    security = config.security
    return Access(
        Guard(_tokens(security, base_dir), job=config.job, max_calls=security.max_calls),
        _server_tls(security, base_dir),
        max_connections=security.max_connections,
        max_request=security.max_request,
    )


def role_access(spec: JobSpec) -> Access:
    """Of a planner or loader: other roles of this run alone."""
    tls = spec.config.security.tls
    encrypted = tls is not None and tls.between_roles
    return Access(
        Guard(Tokens(spec.role_token)),
        _server_tls(spec.config.security, spec.base_dir) if encrypted else None,
        max_request=ROLE_MAX_REQUEST,
    )


def role_credentials(spec: JobSpec) -> Credentials:
    """Of a role that calls planner or loaders."""
    tls, base_dir = spec.config.security.tls, spec.base_dir
    if tls is None or not tls.between_roles or tls.client_ca is None:
        return Credentials(spec.role_token)
    pair = base_dir / tls.certificate, base_dir / tls.key
    return Credentials(spec.role_token, tls=TLS(base_dir / tls.client_ca, *pair, tls.name))


def check_access(spec: JobSpec) -> None:
    """What keeps a job from being served as it says: ConfigError. Before a role is started."""
    _check_exposure(spec.address, spec.config.security)
    check_files(spec.config, spec.base_dir)


def check_files(config: Config, base_dir: Path) -> None:
    """ConfigError that names a file of `security:` that can't be used."""
    access = public_access(config, base_dir)
    if access.tls is not None:
        access.tls.credentials()


def _check_exposure(address: str, security: Security) -> None:
    """ConfigError where other machines could read without being known."""
    if security.knows_callers or security.allow_anyone or is_loopback(address):
        return
    raise ConfigError(
        f"--address {address} can be reached from other machines, and anyone there could read this job's "
        "data: set security.token_file (or security.token: ${NAME}), or security.tls with client_ca; or "
        "security.allow_anyone: true where the network keeps others out. 127.0.0.1 needs none of them. See "
        "docs/security.md"
    )


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False  # can't be listened on either, which is said elsewhere
    return all(ipaddress.ip_address(str(ip).partition("%")[0]).is_loopback for ip in found)


def _tokens(security: Security, base_dir: Path) -> Tokens | None:
    if security.token is not None:
        return Tokens(security.token.get_secret_value())
    if security.token_file is None:
        return None
    try:
        return Tokens(file=base_dir / security.token_file)
    except ConfigError as error:
        raise ConfigError(f"security.{error}") from None


def _server_tls(security: Security, base_dir: Path) -> ServerTls | None:
    tls = security.tls
    if tls is None:
        return None
    client_ca = None if tls.client_ca is None else base_dir / tls.client_ca
    return ServerTls(base_dir / tls.certificate, base_dir / tls.key, client_ca)
