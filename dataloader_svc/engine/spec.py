"""What every process of a job is told: one JSON file that the supervisor writes and each role reads."""

from __future__ import annotations

import json
import os
import re
import secrets
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.config.schema import Config, Security
from dataloader_svc.config.schema.security import REVEALED
from dataloader_svc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as its processes see it.

    base_dir  folder that relative paths in the configuration start from
    store     URL of the state store, absolute
    run_dir   folder of this run: spec, logs
    address   where constructor 0 listens, HOST:PORT; port 0 = any free one
    run_id    names this run of the service: its planners succeed each other at once, others wait
    role_token  that roles of this run show each other
    """

    config: Config
    base_dir: Path
    store: str
    run_dir: Path
    address: str
    run_id: str
    role_token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def write(self) -> Path:
        """Write `run_dir/job.json` for the roles and return its path."""
        values = {
            "config": self.config.model_dump(mode="json", context=REVEALED),
            "base_dir": str(self.base_dir),
            "store": self.store,
            "run_dir": str(self.run_dir),
            "address": self.address,
            "run_id": self.run_id,
            "role_token": self.role_token,
        }
        path = self.run_dir / "job.json"
        path.unlink(missing_ok=True)  # whoever could read it before must not read this one
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(values, file)  # tokens, and perhaps a password in the store's URL
        return path

    @classmethod
    def read(cls, path: Path) -> JobSpec:
        """The inverse of `write`."""
        values = json.loads(path.read_text())
        return cls(
            config=Config.model_validate(values["config"]),
            base_dir=Path(values["base_dir"]),
            store=values["store"],
            run_dir=Path(values["run_dir"]),
            address=values["address"],
            run_id=values["run_id"],
            role_token=values["role_token"],
        )


def job_spec(loaded: LoadedConfig, run_dir: Path, address: str, store: str | None = None) -> JobSpec:
    """The spec of a loaded configuration. `store` replaces the configured one.

    A bare `sqlite` means `.dataloader-svc/JOB.db` beside the configuration; in a Redis, jobs are told apart
    by their name.
    """
    config = loaded.config
    url = store or config.store
    if url == "sqlite":
        folder = loaded.base_dir / ".dataloader-svc"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                loaded.problem(
                    ("store",), f"can't make {folder}: {error.strerror}; set store: sqlite:///PATH.db"
                )
            ) from None
        url = f"sqlite:///{folder / config.job}.db"
    elif url.startswith(("redis", "rediss")) and not re.search(r"[?&]job=", url):
        url += f"{'&' if '?' in url else '?'}job={config.job}"
    return JobSpec(config, loaded.base_dir, url, run_dir, address, run_id=uuid.uuid4().hex[:12])


def private(spec: JobSpec) -> JobSpec:
    """The same for a job that only this process is to read: with a token that nobody else has."""
    token = Security.model_validate({"token": secrets.token_hex(32)})
    return replace(spec, config=spec.config.model_copy(update={"security": token}))
