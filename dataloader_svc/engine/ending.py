"""Ending what may not want to end: no wait without a bound, and what has not ended by then is named."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterable
from typing import Any

log = logging.getLogger(__name__)

END_S = 3.0
"""For a task to end that was cancelled: it takes a turn of the loop."""


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """End them, but for the one that asks. What they raise is theirs to tell before."""
    others = {task for task in tasks if task is not asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return
    ended, left = await asyncio.wait(others, timeout=END_S)
    for task in ended:
        if not task.cancelled():
            task.exception()  # asked for, or Python complains that nobody did
    for task in left:
        log.error("%s has not ended %g s after it was cancelled", _place(task), END_S)


async def within(seconds: float, what: str, work: Coroutine[Any, Any, None]) -> bool:
    """Wait for `what` no longer than that, then leave it and say so: False. Raises what it raises."""
    task = asyncio.create_task(work, name=what)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        log.error("%s has not ended within %g s (%s); going on without it", what, seconds, _place(task))
        task.cancel()
        return False
    task.result()
    return True


def whereabouts(thread: threading.Thread) -> str:
    """What a thread is at, innermost call last."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - documented, for debuggers
    return "(it has ended)" if frame is None else "".join(traceback.format_stack(frame)).rstrip()


def _place(task: asyncio.Task[Any]) -> str:
    """Its name, and the line where it waits."""
    frames = task.get_stack(limit=1)
    where = f" at {frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else ""
    return f"{task.get_name()}{where}"
