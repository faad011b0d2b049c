from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from dataloader_svc.engine import ending
from dataloader_svc.engine.ending import cancel, whereabouts, within


async def obstinate(end: asyncio.Event) -> None:
    """Passes over being cancelled."""
    while not end.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await end.wait()


def test_tasks_end(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def mistaken() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("on its way out")

        tasks = [asyncio.create_task(asyncio.Event().wait()), asyncio.create_task(mistaken())]
        await asyncio.sleep(0)
        await cancel([*tasks, asyncio.current_task()])
        assert all(task.done() for task in tasks)
        await cancel([])
        assert not caplog.records

    asyncio.run(main())


def test_a_task_that_does_not_end_is_left_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        monkeypatch.setattr(ending, "END_S", 0.01)
        end = asyncio.Event()
        task = asyncio.create_task(obstinate(end), name="the watch")
        await asyncio.sleep(0)
        await cancel([task])
        assert not task.done()
        assert "the watch at " in caplog.text
        assert "test_ending.py" in caplog.text
        end.set()
        await task

    asyncio.run(main())


def test_within(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def work() -> None:
            await asyncio.sleep(0)

        async def broken() -> None:
            raise ValueError("broken")

        assert await within(60.0, "work", work())
        with pytest.raises(ValueError, match="broken"):
            await within(60.0, "work", broken())
        assert not caplog.records

    asyncio.run(main())


def test_not_within(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        end = asyncio.Event()
        assert not await within(0.01, "closing the store", obstinate(end))
        assert "closing the store has not ended within 0.01 s" in caplog.text
        end.set()

    asyncio.run(main())


def test_whereabouts() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert "wait" in whereabouts(thread)
    end.set()
    thread.join()
    assert whereabouts(thread) == "(it has ended)"
