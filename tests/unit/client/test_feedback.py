"""`loader.report(losses=...)`: summed, in order, until it is answered; and nothing where none is wanted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dataloader_client import DataServiceLoader, Mesh, methods
from dataloader_client._pb import plan_pb2
from dataloader_client._pb.control_service_pb2 import LossesRequest, LossesResponse, StepLosses
from dataloader_client.feedback import MOST_LOSSES, LossSender
from dataloader_client.losses import losses_by_source
from dataloader_client.transport import Transport
from dataloader_svc.testing.scripted_job import JobThread
from dataloader_svc.testing.scripted_roles import SOURCES, Script, ScriptedPlanner
from reading import take_step


class Wire:
    """In the place of a transport: each message waits until the test answers it."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[int], object]] = []

    def post(self, method, request: LossesRequest, timeout_s: float, done) -> None:
        self.sent.append(([report.step for report in request.steps], done))

    def answer(self, answer: LossesResponse | None) -> list[int]:
        steps, done = self.sent.pop(0)
        done(answer)
        return steps


def test_one_message_at_a_time_in_order_until_it_is_answered():
    wire = Wire()
    sender = LossSender(wire)
    for step in range(3):
        sender.add(StepLosses(step=step))
    assert wire.answer(None) == [0]
    assert wire.sent == [], "a service that is away is not called in a loop"
    sender.send()
    sender.send()
    assert wire.answer(None) == [0, 1, 2]
    sender.add(StepLosses(step=3))
    assert wire.answer(LossesResponse()) == [0, 1, 2, 3]
    sender.add(StepLosses(step=4))
    assert wire.answer(LossesResponse()) == [4]
    assert wire.sent == []


def test_a_service_that_is_away_costs_so_much_memory():
    wire = Wire()
    sender = LossSender(wire)
    for step in range(MOST_LOSSES + 5):
        sender.add(StepLosses(step=step))
    assert sender.dropped == 5
    sent = []
    while wire.sent:
        sent += wire.answer(LossesResponse())
    assert sent == list(range(MOST_LOSSES))


@pytest.fixture
def posted(monkeypatch):
    """Reports that are sent by a loader whose service wants losses; all are answered."""
    reports: list[StepLosses] = []
    join = ScriptedPlanner.join

    async def joined(self, request: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        response = await join(self, request)
        response.wants_losses = True
        return response

    def post(_, method, request, timeout_s, done) -> None:
        if method is methods.REPORT_LOSSES:
            reports.extend(request.steps)
        done(method.response())

    monkeypatch.setattr(ScriptedPlanner, "join", joined)
    monkeypatch.setattr(Transport, "post", post)
    return reports


def sums_of(report: StepLosses) -> np.ndarray:
    sums = np.zeros((len(SOURCES), 2))
    sums[list(report.source)] = np.stack([report.loss, report.targets], axis=1)
    return sums


def test_sums_by_source_of_the_step_that_was_handed_out_last(posted):
    with JobThread(Script(num_steps=3)) as service, DataServiceLoader(service.address, mesh=Mesh()) as loader:
        names = tuple(loader.info.sources)
        loader.report(losses=np.zeros((len(names), 2)))  # of no step yet
        batches = take_step(loader)
        total = sum(losses_by_source(batch, batch.numpy["labels"] % 5 + 1.0) for batch in batches)
        loader.report(losses=total)
        loader.report(losses=torch.from_numpy(total), step=7)
        loader.report(
            losses={name: tuple(row) for name, row in zip(names, total.tolist(), strict=True)}, step=8
        )
        loader.report(losses={}, step_time=1.0)
    assert [report.step for report in posted] == [0, 7, 8, 0]
    for report in posted[:3]:
        np.testing.assert_array_equal(sums_of(report), total)
        assert (report.session, report.dp_rank, report.cp_rank) == (1, 0, 0)
    assert not posted[3].source


def test_a_mean_weighs_the_tokens_that_this_rank_got_of_the_source(posted):
    with JobThread(Script(num_steps=2)) as service:
        mesh = Mesh(dp=2)
        loaders = [DataServiceLoader(service.address, mesh=mesh, rank=rank) for rank in range(2)]
        tokens = np.zeros(len(SOURCES))
        for loader in loaders:
            for batch in take_step(loader):
                spans = batch.manifest.columns
                for source, length in zip(spans["span_source"], spans["span_length"], strict=True):
                    tokens[source] += length
            loader.report(losses=dict.fromkeys(loader.info.sources, 3.0))
        with pytest.raises(ValueError, match="step 1 was not handed out lately"):
            loaders[0].report(losses={loaders[0].info.sources[0]: 3.0}, step=1)
        for loader in loaders:
            loader.close()
    assert [report.dp_rank for report in posted] == [0, 1]
    found = sum(map(sums_of, posted))
    np.testing.assert_array_equal(found, np.stack([3 * tokens, tokens], axis=1))


def test_what_is_no_number_goes_to_the_service_which_names_it(posted):
    with JobThread(Script(num_steps=2)) as service, DataServiceLoader(service.address) as loader:
        take_step(loader)
        loader.report(losses=[[math.nan, 3.0], [0.0, 0.0]])
    (report,) = posted
    assert (list(report.source), list(report.targets)) == ([0], [3.0])


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        ([1.0, 2.0], r"losses have shape \(2,\); \(2, 2\) is needed"),
        ({"wob": 1.0}, "losses has 'wob', which is no source; there are "),
    ],
)
def test_what_has_another_form_is_a_mistake_of_the_program(posted, losses, text):
    with JobThread(Script(num_steps=2)) as service, DataServiceLoader(service.address) as loader:
        take_step(loader)
        with pytest.raises(ValueError, match=text):
            loader.report(losses=losses)
    assert posted == []


def test_where_none_are_wanted_none_are_looked_at():
    with JobThread(Script(num_steps=2)) as service, DataServiceLoader(service.address) as loader:
        take_step(loader)
        loader.report(losses="nonsense")
        loader.close()
        loader.report(losses="nonsense")


def test_another_session_has_no_use_for_what_was_on_its_way(posted):
    with JobThread(Script(num_steps=3)) as service, DataServiceLoader(service.address) as loader:
        state = loader.state_dict()
        take_step(loader)
        loader.report(losses=np.ones((2, 2)))
        loader.load_state_dict(state)
        loader.report(losses=np.ones((2, 2)))  # of no step of this session
        take_step(loader)
        loader.report(losses=np.ones((2, 2)))
    assert [report.step for report in posted] == [0, 0]
