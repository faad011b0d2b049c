"""What happens to a job on a bad day beside dead processes: mixture, disk and clock.

`chaos.py` says when. A change of the mixture is made in every history that knows it: so the undisturbed job
is told the same changes, each at the step at which it was made (`tell`).
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dataloader_client import MixtureError
from dataloader_client.control import set_mixture, show_mixture
from dataloader_client.transport import Transport
from dataloader_svc.config.load import load_config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.observe.audit import StepDelivery
from dataloader_svc.planner.history import current_generation
from dataloader_svc.store import open_store
from real_job import Served

FULL_AT = 4096
"""Bytes that a file may have while the disk is full: no store can be written then."""

ENDS_S = 10.0  # a service that gives up for want of room does so by then


def change_mixture(address: str, rng: np.random.Generator) -> str:
    """Ask for other weights, at once or some steps ahead, and wait until that is acknowledged."""
    with contextlib.closing(Transport(address, timeout_s=90.0)) as transport:
        names = sorted(show_mixture(transport, timeout_s=90.0).drawn)
        weights = {
            name: float(weight) for name, weight in zip(names, rng.dirichlet([1.0] * len(names)), strict=True)
        }
        over = int(rng.integers(0, 5))
        ahead = int(rng.integers(0, 8))
        if ahead:
            at_step = show_mixture(transport, timeout_s=90.0).next_step + ahead
            with contextlib.suppress(MixtureError):  # planned meanwhile
                made = set_mixture(transport, weights, at_step=at_step, over=over, timeout_s=90.0)
                return f"mixture from step {made.at_step}"
        return f"mixture from step {set_mixture(transport, weights, over=over, timeout_s=90.0).at_step}"


def changes_in(steps: Iterable[StepDelivery]) -> list[dict[str, Any]]:
    """All changes that the states of these steps have had, as they came."""
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        for change in step.state.get("mixture", ()):
            found.setdefault(change["id"], change)
    return sorted(found.values(), key=lambda change: change["known_from"])


def tell(config: Path, changes: Iterable[Mapping[str, Any]]) -> None:
    """Write changes into the store of a job that has begun and is stopped."""
    loaded = load_config(config)
    spec = job_spec(loaded, loaded.base_dir, "127.0.0.1:0")
    with contextlib.closing(open_store(spec.store, spec.base_dir)) as store:
        generation = current_generation(store)
        assert generation is not None, "a rank has joined"
        for number, change in enumerate(changes):
            store.append(generation.mixture_log, number, json.dumps(dict(change)).encode(), fence=None)


@contextlib.contextmanager
def full_disk(processes: Iterable[psutil.Process]) -> Any:
    """Inside, none of them can write a file beyond FULL_AT bytes."""
    limited = []
    for process in processes:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FULL_AT, resource.RLIM_INFINITY))
            limited.append(process)
    try:
        yield
    finally:
        for process in limited:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, no_limit)


def has_ended(served: Served) -> bool:
    """Whether the service ends now, for what has just happened to it."""
    try:
        served.process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def set_clock(path: Path, seconds: float) -> None:
    """Let the wall clock of all processes that look there be off by so many."""
    whole = path.with_suffix(".new")
    whole.write_text(str(seconds))
    whole.replace(path)  # nobody reads half of it
