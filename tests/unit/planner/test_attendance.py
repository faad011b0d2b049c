"""Ranks that come one after the other: who is taken in, who waits, what both sides of a dispute are told."""

from __future__ import annotations

import asyncio
import re

import pytest

from dataloader_svc.errors import MeshError, SessionSuperseded, StateError
from dataloader_svc.planner import sessions
from dataloader_svc.planner.attendance import Agreement, Attendance, Claim, Coords
from dataloader_svc.planner.place import MeshSize

from .planner_world import World, scenario

TWO, FOUR, ONE = MeshSize(dp=2), MeshSize(dp=2, cp=2), MeshSize()
FIVE = Claim(5, "5" * 32, TWO)
SEVEN = Claim(7, "7" * 32, TWO)


@pytest.mark.parametrize(
    ("came", "claim", "rank", "waits"),
    [
        ([0], FIVE, 1, False),  # with the others
        ([0], SEVEN, 1, True),
        ([0], SEVEN, 0, False),  # the same rank again: it knows what it does
        ([0, 1], SEVEN, 1, False),  # all had come: this is another start
        ([1], SEVEN, 0, True),
    ],
)
def test_who_is_held_back(came, claim, rank, waits):
    attendance = Attendance(3, FIVE, frozenset(Coords(dp=dp) for dp in came))
    assert attendance.holds_back(claim, Coords(dp=rank)) is waits


def agree(agreement: Agreement, claim: Claim, rank: Coords, session: int) -> asyncio.Task[None]:
    """A rank that joins as the planner has it join."""

    async def join() -> None:
        until = agreement.deadline()
        async with agreement.holding(claim, rank):
            while not agreement.may_enter(claim, rank):
                await agreement.hold_back(claim, rank, until)
            await agreement.entered(session, claim, rank)

    return asyncio.create_task(join())


def test_one_that_waits_is_taken_in_when_the_first_comes_round():
    async def body() -> None:
        agreement = Agreement(60)
        await agree(agreement, FIVE, Coords(dp=0), 1)
        waits = agree(agreement, SEVEN, Coords(dp=1), 2)
        await asyncio.sleep(0)
        assert not waits.done()
        await agree(agreement, SEVEN, Coords(dp=0), 2)  # it was restarted, too
        await waits

    asyncio.run(asyncio.wait_for(body(), 30))


def test_all_ranks_of_a_mesh_overrule_one_that_went_away():
    async def body() -> None:
        agreement = Agreement(60)
        wide = Claim(7, "7" * 32, FOUR)
        await agree(agreement, wide, Coords(dp=1, cp=1), 1)  # and was killed
        await agree(agreement, Claim(7, "7" * 32, ONE), Coords(), 2)  # all of its mesh: nothing to wait for
        await agree(agreement, wide, Coords(dp=1), 3)
        both = [agree(agreement, SEVEN, Coords(dp=dp, tp=1), 4) for dp in range(1)]
        await asyncio.sleep(0)
        assert not both[0].done()  # one of two, and a session lacks ranks
        await asyncio.gather(*both, agree(agreement, SEVEN, Coords(dp=1, tp=1), 4))

    asyncio.run(asyncio.wait_for(body(), 30))


@pytest.mark.parametrize(
    ("claim", "error"),
    [(SEVEN, StateError), (Claim(5, "5" * 32, FOUR), MeshError), (Claim(0, "", TWO), StateError)],
)
def test_a_dispute_is_told_to_both_sides(claim, error):
    async def body() -> None:
        agreement = Agreement(0)
        await agree(agreement, FIVE, Coords(dp=0), 3)
        with pytest.raises(error) as told:
            await agree(agreement, claim, Coords(dp=1), 4)
        assert f"rank dp=0 joined with {FIVE}, and rank dp=1 comes with {claim}" in str(told.value)
        with pytest.raises(SessionSuperseded, match=r"session 3 is over: ranks disagree: rank dp=0 joined"):
            agreement.check(3)
        agreement.check(2)
        await agree(agreement, claim, Coords(dp=1), 4)  # started again: nothing is held against it

    asyncio.run(asyncio.wait_for(body(), 30))


def test_claims_in_words():
    assert str(FIVE) == "the state of step 5 (55555555) on mesh dp=2,cp=1,tp=1,pp=1"
    assert str(Claim(0, "abcdefghi", ONE)) == "the start (abcdefgh) on mesh dp=1,cp=1,tp=1,pp=1"
    assert str(Coords(1, 0, 2)) == "dp=1,tp=2"


def test_the_planner_ends_a_session_that_ranks_disagree_about(tmp_path, monkeypatch):
    """Its readers are told, in the words of the other side; then all start again, and go on."""
    monkeypatch.setattr(sessions, "AGREE_S", 0.0)

    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        first = await world.join(dp=1)
        state = (await world.plans(first.session, 0, 2))[-1].record.state_json
        forming = await world.join(dp=2, state=state)
        assert forming.start_step == 3
        with pytest.raises(
            StateError, match=r"rank dp=0 joined with the state of step 3 .* comes with the start"
        ):
            await world.join(dp=2, coords={"dp": 1})
        with pytest.raises(SessionSuperseded, match=re.escape("and rank dp=1 comes with the start")):
            await world.plans(forming.session, 3, 4)
        again = [(await world.join(dp=2, state=state, coords={"dp": dp})).session for dp in (1, 0)]
        assert again == [forming.session + 1] * 2
        assert [plan.step for plan in await world.plans(again[0], 3, 4)] == [3, 4]

    scenario(body, tmp_path)


def test_a_rank_of_a_session_that_is_over_begins_none(tmp_path):
    """It only asks where its constructor is: all have gone on without it."""

    async def body(world: World) -> None:
        await world.add_loader()
        await world.start()
        old = (await world.join(dp=1)).session
        assert (await world.join(dp=1, session=old)).session == old
        new = (await world.join(dp=2)).session
        with pytest.raises(SessionSuperseded, match=f"session {new} is served now"):
            await world.join(dp=1, session=old)
        assert (await world.join(dp=2, coords={"dp": 1})).session == new

    scenario(body, tmp_path)
