"""Whatever an error says arrives: what is too long for a status loses its middle, not its class."""

from __future__ import annotations

import asyncio

import pytest

from dataloader_client import methods
from dataloader_client._pb import plan_pb2
from dataloader_svc.errors import StateError
from dataloader_svc.rpc.answers import MOST_TEXT, shortened
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.stubs import Peer


class Planner:
    def __init__(self, text: str) -> None:
        self.text = text

    async def join(self, _: plan_pb2.JoinRequest) -> plan_pb2.JoinResponse:
        raise StateError(self.text)

    plans = status = report = join


@pytest.mark.parametrize("text", ["", "plain", "x" * MOST_TEXT, "é" * (MOST_TEXT // 6), "100 %"])
def test_what_fits_stays(text: str) -> None:
    assert shortened(text) == text


@pytest.mark.parametrize("letter", ["x", "%", "é", "猫", "🙂", "\n", "\udc80"])
@pytest.mark.parametrize("count", [MOST_TEXT // 12 + 1, 10_000, 300_000])
def test_what_does_not_fit_arrives_without_its_middle(letter: str, count: int) -> None:
    text = f"first words {letter * count} last words"

    async def scenario() -> None:
        server, address = await start_server({methods.PLANNER: Planner(text)}, "127.0.0.1:0")
        async with Peer(address, "planner") as peer:
            with pytest.raises(StateError, match=r"(?s)^first words .* last words$"):
                await peer.call(methods.PLANNER_JOIN, plan_pb2.JoinRequest(), timeout_s=60)
        await server.stop(None)

    asyncio.run(scenario())
    assert len(shortened(text)) <= MOST_TEXT
