"""Authorities and certificates for tests, made on the fly; nothing of them is ever committed."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = ("localhost", "127.0.0.1")
"""What this machine is called in a certificate."""


@dataclass
class Issued:
    """Paths of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its own is `pem`. Everything is written to `folder`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key)
        self._certificate = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.pem = folder / f"{name}.pem"
        self.pem.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        names: tuple[str, ...] = HERE,
        expired: bool = False,
        password: bytes | None = None,
    ) -> Issued:
        """A certificate of `name`, for the hosts `names`. One of before of that name is replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key, days=-1 if expired else 2)
        hosts = x509.SubjectAlternativeName([_host(host) for host in names])
        certificate = builder.add_extension(hosts, critical=False).sign(self._key, hashes.SHA256())
        issued = Issued(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        issued.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        issued.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
        )
        return issued


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 2
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    begin = now - dt.timedelta(days=5)
    return builder.not_valid_before(begin).not_valid_after(now + dt.timedelta(days=days))


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
