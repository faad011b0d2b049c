"""What every process of a job is told: one JSON file that the supervisor writes and each role reads."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as its processes see it.

    base_dir  folder that relative paths in the configuration start from
    store     URL of the state store, absolute
    run_dir   folder of this run: spec, logs
    address   where constructor 0 listens, HOST:PORT; port 0 = any free one
    run_id    names this run of the service: its planners succeed each other at once, others wait
    """

    config: Config
    base_dir: Path
    store: str
    run_dir: Path
    address: str
    run_id: str

    def write(self) -> Path:
        """Write `run_dir/job.json` for the roles and return its path."""
        values = {
            "config": self.config.model_dump(mode="json"),
            "base_dir": str(self.base_dir),
            "store": self.store,
            "run_dir": str(self.run_dir),
            "address": self.address,
            "run_id": self.run_id,
        }
        path = self.run_dir / "job.json"
        path.touch(mode=0o600)  # the store's URL may hold a password
        path.write_text(json.dumps(values))
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
