"""What a service says to one that wants its job: refused with a reason, or let have it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dataloader_svc.engine import takeover
from dataloader_svc.engine.serving import Holder, Serving
from dataloader_svc.engine.takeover import ANSWER_KEY, REQUEST_KEY, Offer
from dataloader_svc.errors import StateError, StoreError
from dataloader_svc.store.memory import MemoryStore

OURS = Offer("1", Holder.this_process("127.0.0.1:7077"), "0.1", 1, "aa", {"job": "01-02", "source/web": "03"})
NEXT = replace(OURS, number="2", version="0.2")


def test_a_newer_version_of_the_same_job_may_have_it() -> None:
    assert OURS.refuses(NEXT) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol": 2}, r"speaks protocol 2 \(0.2\), the trainers that read now 1 \(0.1\)"),
        ({"config_hash": "bb", "digest": {"job": "99-02", "source/web": "03"}}, "seed changed"),
        ({"config_hash": "bb"}, "the mixture, the batch or packing changed"),
        ({"holder": replace(OURS.holder, machine="elsewhere/1")}, "it runs on another machine"),
    ],
)
def test_what_trainers_would_notice_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(OURS.refuses(replace(NEXT, **changes)))


def test_an_offer_of_another_version_is_none() -> None:
    assert Offer.from_json(OURS.to_json()) == OURS
    for text in (None, b"", b"[]", b"{}", b'{"number": 1}', b"\xff"):
        assert Offer.from_json(text) is None


def test_an_answer_to_another_try_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    store.put(ANSWER_KEY, b'["1", "no"]')
    waits = []

    async def scenario() -> Serving:
        held = await Serving.begin(store, "j", "127.0.0.1:1")

        async def pause(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                await held.end()

        monkeypatch.setattr(takeover.asyncio, "sleep", pause)
        other = replace(NEXT, holder=replace(NEXT.holder, pid=1, started=0.0))
        assert await Serving.take(store, other.holder) is None
        return await takeover.take_over(store, "j", other)

    assert asyncio.run(scenario()) is not None
    assert len(waits) == 3


def test_a_refusal_ends_the_try(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    other = replace(NEXT, config_hash="bb", holder=replace(NEXT.holder, started=0.0))

    async def scenario() -> None:
        await Serving.begin(store, "j", "127.0.0.1:1")
        monkeypatch.setattr(Holder, "is_gone", lambda _: False)
        monkeypatch.setattr(takeover, "LOOK_S", 0.001)
        watching = asyncio.create_task(takeover.asked(store, OURS))
        try:
            await takeover.take_over(store, "j", other)
        finally:
            watching.cancel()

    with pytest.raises(StateError, match="job 'j' can't be taken over: its configuration would make other"):
        asyncio.run(scenario())


def test_one_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()

    async def scenario() -> None:
        await Serving.begin(store, "j", "127.0.0.1:1")
        monkeypatch.setattr(takeover, "PATIENCE_S", 0.02)
        monkeypatch.setattr(takeover, "LOOK_S", 0.001)
        await takeover.take_over(store, "j", replace(NEXT, holder=replace(NEXT.holder, started=0.0)))

    with pytest.raises(StoreError, match="was not handed over in 0 s"):
        asyncio.run(scenario())
    assert store.get(REQUEST_KEY) is not None
