"""Forks of a process that has a loader: by a torch DataLoader's workers, a launcher, `os.fork`.

A channel of gRPC has threads, which a fork does not copy: in the child, a loader of the parent says so
(`loader.py`) and touches nothing, also when it is dropped there; a new one works. The parent goes on. All of
this holds with gRPC as it comes; one variable of its own changes that.
"""

from __future__ import annotations

import os
import warnings

_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"


def warn_of_fork_support() -> None:
    """RuntimeWarning where gRPC (seen with 1.85.3) makes every fork wait until no call is under way: with a
    loader that reads ahead one always is, and the fork never returns.
    """
    if os.environ.get(_VARIABLE, "").lower() in ("1", "true", "yes", "y"):
        warnings.warn(
            f"{_VARIABLE} is set: a fork of this process hangs while a DataServiceLoader reads ahead. Unset "
            f"it, or set {_VARIABLE}=0, before Python starts; forks work without it",
            RuntimeWarning,
            stacklevel=3,
        )
