"""The planner's service, where encoder work may be on another rank than the tokens."""

from __future__ import annotations

import pytest

from dataloader_svc.errors import VersionError
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources

from .planner_world import World, config, scenario

SOURCES = ScriptedSources(
    {"a": [Sample(40) for _ in range(400)], "b": [Sample(20, ((0, 16, 64),)) for _ in range(400)]}, block=50
)


def test_plans_say_who_encodes_and_old_clients_are_refused(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader(SOURCES)
        await world.start()
        with pytest.raises(VersionError, match=r"encoder_placement is dispatch; .* too old .* upgrade"):
            await world.join()
        joined = await world.join(knows_dispatch=True)
        assert joined.encoder_placement == "dispatch"
        plans = await world.plans(joined.session, 0, 3)
        for plan in plans:
            assert len(plan.encoder_rank) == len(plan.record.source)
            assert set(plan.encoder_rank) <= {0, 1}
        assert {rank for plan in plans for rank in plan.encoder_rank} == {0, 1}
        other = await world.join(dp=4, state=plans[1].record.state_json, knows_dispatch=True)
        again = await world.plans(other.session, 2, 3)
        assert [p.record.digest for p in again] == [p.record.digest for p in plans[2:]]
        assert max(rank for plan in again for rank in plan.encoder_rank) == 3

    scenario(body, tmp_path, config(strategy={"encoder_placement": "dispatch"}))


def test_without_it_plans_say_nothing_and_any_client_is_served(tmp_path):
    async def body(world: World) -> None:
        await world.add_loader(SOURCES)
        await world.start()
        joined = await world.join()
        assert joined.encoder_placement == "own"
        assert not any(len(plan.encoder_rank) for plan in await world.plans(joined.session, 0, 3))

    scenario(body, tmp_path)
