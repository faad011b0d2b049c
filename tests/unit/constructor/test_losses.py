"""Losses on their way through a constructor: answered with the planner's answer, never kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dataloader_client._pb.control_service_pb2 import LossesRequest, LossesResponse, StepLosses
from dataloader_svc.constructor import losses
from dataloader_svc.constructor.losses import Losses
from dataloader_svc.errors import Overloaded, PeerError


class Planner:
    """As `peers.planner()` gives it: the answer to each message, or an error, when it is let go on."""

    def __init__(self, *answers: LossesResponse | Exception) -> None:
        self.answers, self.heard = list(answers), []
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def planner(self) -> Planner:
        return self

    async def call(self, method, message: LossesRequest, *, timeout_s: float) -> LossesResponse:
        self.heard.append([step.step for step in message.steps])
        self.asked.set()
        await self.go_on.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def of(*steps: int) -> LossesRequest:
    return LossesRequest(steps=[StepLosses(step=step) for step in steps])


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(body(), 60)

    asyncio.run(within())


def test_what_comes_while_one_is_on_its_way_goes_together():
    async def body() -> None:
        planner = Planner(LossesResponse(decided=1), LossesResponse(decided=2))
        through = Losses(planner)
        first = asyncio.create_task(through.report(of(1)))
        await planner.asked.wait()
        others = [asyncio.create_task(through.report(of(step))) for step in (2, 3)]
        await asyncio.sleep(0)
        planner.go_on.set()
        assert [(await each).decided for each in (first, *others)] == [1, 2, 2]
        assert planner.heard == [[1], [2, 3]]
        await through.stop()

    run(body)


def test_an_error_is_told_to_all_that_it_is_of_and_to_no_other():
    async def body() -> None:
        planner = Planner(PeerError("away"), LossesResponse(decided=7))
        planner.go_on.set()
        through = Losses(planner)
        with pytest.raises(PeerError, match="away"):
            await through.report(of(1))
        assert (await through.report(of(1, 2))).decided == 7
        await through.stop()

    run(body)


def test_a_rank_that_goes_away_takes_nobody_s_answer_along():
    async def body() -> None:
        planner = Planner(PeerError("away"), LossesResponse(decided=3))
        through = Losses(planner)
        gone = asyncio.create_task(through.report(of(1)))
        await planner.asked.wait()
        other = asyncio.create_task(through.report(of(2)))
        await asyncio.sleep(0)
        gone.cancel()
        planner.go_on.set()
        assert (await other).decided == 3
        await through.stop()

    run(body)


def test_nothing_is_answered_with_nothing():
    async def body() -> None:
        planner = Planner()
        assert await Losses(planner).report(of()) == LossesResponse()
        assert planner.heard == []

    run(body)


def test_more_than_may_wait_is_refused(monkeypatch):
    monkeypatch.setattr(losses, "MOST", 3)

    async def body() -> None:
        planner = Planner(LossesResponse(), LossesResponse())
        through = Losses(planner)
        first = asyncio.create_task(through.report(of(1)))
        await planner.asked.wait()
        second = asyncio.create_task(through.report(of(2, 3)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 reports of losses wait"):
            await through.report(of(4, 5))
        planner.go_on.set()
        await asyncio.gather(first, second)
        await through.stop()

    run(body)
