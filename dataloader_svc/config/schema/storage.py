"""Files that lie elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from dataloader_svc.config.schema.model import Bytes, Model, parse_size

_SECRETS = {"s3": {"key", "secret", "token", "username", "password"}, "hf": {"token"}}


class StorageSettings(Model):
    """Files that lie elsewhere (s3, gs, hf, https), and copies of compressed ones."""

    scratch: str = Field(
        default=".dataloader-svc/scratch",
        description="Folder for plain copies of compressed files (gzip, zstd); jobs may share it.",
    )
    scratch_bytes: Bytes = Field(
        default=50 * 2**30,
        description="Most bytes kept there, over all processes. A source that expands to more is read "
        "slowly: files are expanded again and again.",
    )
    cache: str = Field(
        default=".dataloader-svc/cache", description="Folder for blocks of remote files; jobs may share it."
    )
    cache_bytes: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] = Field(
        default=10 * 2**30, description="Most bytes kept there, over all processes; 0: nothing is kept."
    )
    read_ahead: Bytes = Field(
        default=8 * 2**20, description="Most bytes asked for at once where a file is read on and on."
    )
    retries: int = Field(default=8, ge=0, description="Repetitions of a request that may yet succeed.")
    timeout: float = Field(
        default=30.0, gt=0, description="Seconds for one request; a second more for each MiB asked for."
    )
    deadline: float = Field(default=300.0, gt=0, description="Seconds for a request and its repetitions.")
    options: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Scheme -> options of its fsspec file system, such as `s3: {endpoint_url: ...}`. "
        "Credentials come from the environment.",
    )

    @field_validator("options")
    @classmethod
    def _no_secrets(cls, options: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for scheme, values in options.items():
            if found := sorted(_SECRETS.get(scheme, set()) & set(values)):
                raise ValueError(
                    f"{scheme}: {', '.join(found)}: credentials come from the environment, "
                    "not from this file; see docs/storage.md"
                )
        return options
