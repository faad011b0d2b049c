"""A service with so many loaders, and a trainer's step: what benches of its faults begin with."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dataloader_client import Batch
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.engine.job import Job
from dataloader_svc.engine.spec import job_spec


@contextlib.contextmanager
def running(
    loaded: LoadedConfig, *, loaders: int = 1, shadows: int = 0, folder: Path | None = None
) -> Iterator[Job]:
    """The job, while the context is open; its store goes with `folder`, or with the context."""
    loader = loaded.config.loader.model_copy(update={"count": loaders, "shadows": shadows})
    config = loaded.config.model_copy(update={"loader": loader})
    with contextlib.ExitStack() as stack:
        scratch = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run_dir = scratch / "run"
        run_dir.mkdir(exist_ok=True)
        spec = job_spec(
            replace(loaded, config=config), run_dir, "127.0.0.1:0", f"sqlite:///{scratch}/state.db"
        )
        with Job(spec) as job:
            yield job


def take_step(batches: Iterator[Batch]) -> None:
    """All microbatches of one."""
    for batch in batches:
        if batch.is_last_microbatch:
            return
