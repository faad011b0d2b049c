"""Tasks that nobody awaits, and the end of the role where one of them fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Background:
    """Belongs to one event loop. `failed` ends with the first failure, at which `on_failure` is called."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it. What it raises must not go unseen: it ends the role, which starts again from the store."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def fail(self, error: BaseException) -> None:
        """End the role for `error`, unless it ends already."""
        if self.failed.done():
            return
        log.error("planner: %s: %s", type(error).__name__, error)
        self.failed.set_exception(error)
        self.failed.exception()  # seen: the role may be stopping already
        self._on_failure()

    async def stop(self) -> None:
        """End what runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)
