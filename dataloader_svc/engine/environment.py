"""What roles find in their environment, where the person who starts a job has not set it.

It holds what libraries read once, when they are loaded: too late for a role that has begun.
"""

from __future__ import annotations

from collections.abc import Mapping

from dataloader_svc import allocator

_THREADS: Mapping[str, str] = {
    # A loader encodes in each thread that reads. fastokens' own threads would share that work, each with a
    # cache of words of its own to fill, and poll for more of it: up to a quarter more CPU for the same text.
    "FASTOKENS_BPE_THREADS": "1",
    # No role multiplies matrices that are worth a thread.
    "OPENBLAS_NUM_THREADS": "1",
}


def role_environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a role's process; `own` is that of its parent, and wins."""
    return {**allocator.ENVIRONMENT, **_THREADS, **own}
