"""`loader.report` against real constructors: times reach the planner, and nothing ever holds up a trainer."""

from __future__ import annotations

import asyncio
import math
import queue
import threading

import pytest

from dataloader_client import DataServiceLoader, Mesh
from dataloader_client._pb import common_pb2, constructor_service_pb2, planner_service_pb2
from dataloader_client.feedback import MOST_TIMES, TimeSender
from dataloader_svc.constructor.service import ConstructorService
from dataloader_svc.errors import PeerError
from dataloader_svc.testing.scripted_job import JobThread
from dataloader_svc.testing.scripted_roles import Script, ScriptedPlanner

LIMIT_S = 60.0
CALIBRATE = {"strategy": {"calibrate": True}}


@pytest.fixture
def heard(monkeypatch):
    """Rows (session, step, dp rank, step time, compute time) that the planner is told, one by one."""
    rows = queue.Queue()

    async def report(_, times: planner_service_pb2.StepTimes) -> common_pb2.Empty:
        for row in zip(times.step, times.dp_rank, times.step_time, times.compute_time, strict=True):
            rows.put((times.session, *row))
        return common_pb2.Empty()

    monkeypatch.setattr(ScriptedPlanner, "report", report)
    return rows


@pytest.fixture
def answered(monkeypatch):
    """One item for each report that the client knows the end of."""
    ends = queue.Queue()
    original = TimeSender._answered

    def reported(self, answer):
        original(self, answer)
        ends.put(answer)

    monkeypatch.setattr(TimeSender, "_answered", reported)
    return ends


@pytest.fixture
def asked(monkeypatch):
    """Every report that reaches a constructor."""
    requests = []
    original = ConstructorService.report

    async def report(self, request):
        requests.append(request)
        return await original(self, request)

    monkeypatch.setattr(ConstructorService, "report", report)
    return requests


def test_times_are_of_the_step_that_was_handed_out_last(heard):
    with JobThread(Script(num_steps=4), **CALIBRATE) as service:
        mesh = Mesh(dp=2)
        loaders = [DataServiceLoader(service.address, mesh=mesh, rank=rank) for rank in range(2)]
        for loader in loaders:
            loader.report(step_time=1.0)  # of no step yet: not sent
        for rank, loader in enumerate(loaders):
            for batch in loader:
                if batch.is_last_microbatch and batch.step == 1:
                    break
            loader.report(step_time=3.0, compute_time=2.0 + rank)
        loaders[0].report(compute_time=7.0, step=0)
        found = sorted(heard.get(timeout=LIMIT_S) for _ in range(3))
        for loader in loaders:
            loader.close()
            loader.report(step_time=1.0)  # a loop that ends in any order is no mistake
        assert found == [(1, 0, 0, 0.0, 7.0), (1, 1, 0, 3.0, 2.0), (1, 1, 1, 3.0, 3.0)]
    assert heard.empty()


@pytest.mark.parametrize("value", [None, 0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_not_sent(value, heard):
    with JobThread(Script(num_steps=2), **CALIBRATE) as service, DataServiceLoader(service.address) as loader:
        next(loader)
        loader.report(step_time=value, compute_time=value)
        loader.report(step_time=value, compute_time=1.5)
        assert heard.get(timeout=LIMIT_S) == (1, 0, 0, 0.0, 1.5)
        assert heard.empty()


def test_where_none_is_wanted_one_is_sent_and_no_more(heard, answered, asked):
    with JobThread(Script(num_steps=2)) as service, DataServiceLoader(service.address) as loader:
        next(loader)
        loader.report(step_time=1.0)
        assert answered.get(timeout=LIMIT_S).wanted is False
        for _ in range(5):
            loader.report(step_time=1.0)
        loader.close()
    assert len(asked) == 1
    assert heard.empty()


def test_a_service_that_is_away_holds_nobody_up():
    with JobThread(Script(num_steps=2), **CALIBRATE) as service, DataServiceLoader(service.address) as loader:
        next(loader)
        service.do(service.job.stop("constructor/0"))
        for _ in range(3 * MOST_TIMES):
            loader.report(step_time=1.0)  # fails at once, or waits for the connection: neither is told
        assert loader._feedback.times_sender.flying <= MOST_TIMES
        loader.close()


def test_a_planner_that_is_away_loses_times_and_nothing_else(heard, answered):
    with JobThread(Script(num_steps=3), **CALIBRATE) as service, DataServiceLoader(service.address) as loader:
        next(loader)
        service.job.store.delete("endpoint/planner/0")
        loader.report(step_time=1.0)
        assert answered.get(timeout=LIMIT_S).wanted is True
        reports = service.job.constructors[0]._reports

        async def given_up() -> None:
            while reports._sending is not None:
                await reports._sending

        service.do(given_up())
        assert reports.dropped == 1
        service.do(service.job.stop("planner/0"))
        service.do(service.job.start_planner())
        loader.report(step_time=2.0)
        assert heard.get(timeout=LIMIT_S)[3] == 2.0


def test_while_one_message_is_on_its_way_the_next_fills(monkeypatch):
    messages, first, go_on = [], threading.Event(), threading.Event()

    async def report(_, times):
        messages.append(len(times.step))
        first.set()
        await asyncio.to_thread(go_on.wait, LIMIT_S)
        raise PeerError("unheard")

    monkeypatch.setattr(ScriptedPlanner, "report", report)
    with JobThread(Script(num_steps=2), **CALIBRATE) as service, DataServiceLoader(service.address) as loader:
        next(loader)
        reports = service.job.constructors[0]._reports

        async def add(count: int) -> None:
            for _ in range(count):
                reports.add(constructor_service_pb2.ReportRequest(session=1, step=0, step_time=1.0))

        service.do(add(1))
        assert first.wait(LIMIT_S)
        service.do(add(5))
        go_on.set()

        async def sent() -> None:
            while reports._sending is not None:
                await reports._sending

        service.do(sent())
    assert messages == [1, 5]
