"""A service that another process embeds ends with that process, whatever it dies of.

The kernel tells through a pidfd: it becomes readable at the end of the process, killed or not, and is no
descriptor that forked children of the embedding process could hold open, as they would a pipe's.
"""

from __future__ import annotations

import os
import select
import signal
import threading

from dataloader_svc.errors import EngineError


def end_with(pid: int) -> None:
    """From now on, SIGTERM to this process when its parent `pid` has ended. EngineError: it has already."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        raise EngineError(f"process {pid}, which embeds this service, is gone: {error.strerror}") from None
    if os.getppid() != pid:  # asked after the descriptor was opened: else it could be of a reused number
        os.close(descriptor)
        raise EngineError(f"process {pid} is not the parent of this service: --embedded-in takes the parent")
    threading.Thread(target=_watch, args=(descriptor,), name="owner-watch", daemon=True).start()


def _watch(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)
