"""Who may read a job's batches."""

from __future__ import annotations

from typing import Any

from pydantic import (
    Field,
    SecretStr,
    SerializationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from dataloader_svc.config.schema.model import Bytes, Model

SHORTEST_TOKEN = 16
REVEALED = {"secrets": "revealed"}
"""As pydantic's `context` of a dump: secrets as they are, for the job's own processes. Else: stars."""


class Tls(Model):
    """Encryption of connections. Paths of PEM files, read again when they change."""

    certificate: str = Field(description="The service's certificate, those that it was signed by behind it.")
    key: str = Field(description="Its key, without a password.")
    client_ca: str | None = Field(
        default=None,
        description="Who signs trainers' certificates: trainers without one are refused (mutual TLS).",
    )
    between_roles: bool = Field(
        default=False,
        description="true: the service's own processes speak TLS to each other too, each with `certificate`, "
        "which `client_ca` must have signed.",
    )
    name: str | None = Field(
        default=None,
        description="With between_roles: the name in `certificate`. Default: the address, 127.0.0.1.",
    )

    @model_validator(mode="after")
    def _roles_know_each_other(self) -> Tls:
        if self.between_roles and self.client_ca is None:
            raise ValueError("between_roles needs `client_ca`, by which roles know each other")
        return self


class Security(Model):
    """Who may connect, and how much they may ask for; see docs/security.md."""

    token: SecretStr | None = Field(
        default=None,
        description="Trainers must show it. Written as `${NAME}`: it comes from the environment. "
        f"At least {SHORTEST_TOKEN} letters.",
    )
    token_file: str | None = Field(
        default=None,
        description="Instead of it: a file with tokens, a line each, any of which is accepted. Read again "
        "when it changes.",
    )
    tls: Tls | None = Field(default=None, description="Encryption.")
    allow_anyone: bool = Field(
        default=False,
        description="true: listen on an address that other machines reach although anyone there may then "
        "read all data. Else that needs a token or `tls.client_ca`.",
    )
    max_connections: int = Field(default=4096, gt=0, description="To a constructor at a time.")
    max_calls: int = Field(
        default=16_384, gt=0, description="Open at a constructor at a time; a rank has a few."
    )
    max_request: Bytes = Field(
        default=4 * 2**20, description="Most bytes of a request; a state is the largest."
    )

    @property
    def knows_callers(self) -> bool:
        """Whether not everybody may call."""
        return bool(self.token or self.token_file or (self.tls and self.tls.client_ca))

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        if token is None:
            return None
        text = token.get_secret_value()
        if len(text) < SHORTEST_TOKEN or not all("!" <= letter <= "~" for letter in text):
            raise ValueError(
                f"a token has at least {SHORTEST_TOKEN} printable ASCII letters and no spaces; for one that "
                "can't be guessed: openssl rand -hex 32"
            )
        return token

    @field_serializer("token", when_used="json")
    def _shown(self, token: SecretStr | None, info: SerializationInfo) -> Any:
        if token is not None and info.context == REVEALED:
            return token.get_secret_value()
        return None if token is None else str(token)

    @model_validator(mode="after")
    def _one_token(self) -> Security:
        if self.token is not None and self.token_file is not None:
            raise ValueError("give one of token and token_file")
        return self
