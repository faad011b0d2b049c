"""What is begun once for all that ask while it runs: a block that is read, a source that is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")


async def shared(
    tasks: dict[Key, asyncio.Task[Result]], key: Key, work: Callable[[], Coroutine[Any, Any, Result]]
) -> Result:
    """What `work()` returns or raises; `tasks` holds what is under way.

    Who stops waiting (a cancelled call) does not stop the work.
    """
    task = tasks.get(key)
    if task is None:
        task = tasks[key] = asyncio.create_task(work())
        task.add_done_callback(lambda done: _finish(tasks, key, done))
    return await asyncio.shield(task)


def _finish(tasks: dict[Key, asyncio.Task[Result]], key: Key, done: asyncio.Task[Result]) -> None:
    del tasks[key]
    if not done.cancelled():
        done.exception()  # seen: every waiter may be gone
