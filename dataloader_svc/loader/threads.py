"""The threads that probe and decode media: most do the work themselves, others wait for a worker process.

Kept apart, a clip on which a worker hangs holds up no picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

from dataloader_svc.media.base import Prober
from dataloader_svc.media.worker_reader import WorkerReader

Result = TypeVar("Result")


def only_waits(reader: Prober | None) -> bool:
    """Whether a thread that calls this reader waits for another process."""
    return isinstance(reader, WorkerReader)


def run_in_order(tasks: Iterable[tuple[Executor, Callable[[], Result]]]) -> Iterator[Result]:
    """What the tasks return, in their order. All are handed over at once; where one raises, those that
    haven't begun are not run.
    """
    futures = [executor.submit(task) for executor, task in tasks]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
