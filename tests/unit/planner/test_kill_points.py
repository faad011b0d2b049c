"""Between each two writes of a planner there is a place where a test can kill it."""

from __future__ import annotations

import inspect
from itertools import pairwise
from pathlib import Path

import pytest

from dataloader_svc import faultpoint
from dataloader_svc.store.memory import MemoryStore
from dataloader_svc.testing.scripted_loader import ScriptedSources

from .planner_world import World, config, scenario

WRITES = ("append", "put", "put_many", "compare_and_set", "delete", "truncate", "remove")
LENGTHS = [8, 5, 3, 7] * 40
SOURCES = ScriptedSources.of_lengths({"a": [8, 0, *LENGTHS[2:30], 0, *LENGTHS], "b": [9, 2] * 80}, block=7)


class Watched(MemoryStore):
    """Notes each write in `story`, where fault points are noted too."""

    def __init__(self, story: list[str]) -> None:
        super().__init__()
        self._story = story

    def _noted(self, name: str, *args, **kwargs):
        result = getattr(super(), name)(*args, **kwargs)
        self._story.append(f"write {name} {args[0] if isinstance(args[0], str) else ''}")
        return result


def _watch(name: str):
    return lambda self, *args, **kwargs: self._noted(name, *args, **kwargs)


for _name in WRITES:
    setattr(Watched, _name, _watch(_name))


def test_every_write_of_a_store_is_watched() -> None:
    """A new one belongs into WRITES, or here: what changes nothing but leases and who is there."""
    others = {"read", "last", "get", "items", "acquire", "renew", "release", "close"}
    public = {name for name, _ in inspect.getmembers(MemoryStore, callable) if not name.startswith("_")}
    assert public == others | set(WRITES)


def test_between_each_two_writes_is_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story: list[str] = []
    monkeypatch.setattr(faultpoint, "point", story.append)

    async def body(world: World) -> None:
        world.store = Watched(story)
        await world.add_loader(SOURCES)
        story.clear()
        await world.start()
        session = (await world.join()).session
        plans = await world.plans(session, 0, 9)
        other = (await world.join(dp=1, state=plans[4].record.state_json)).session
        await world.plans(other, 5, 12)
        await world.stop()
        await world.start(config(sequence_length=48))  # other steps: the next generation
        third = (await world.join(state=plans[2].record.state_json)).session
        await world.plans(third, 3, 6)
        await world.stop()

    scenario(body, tmp_path)
    writes = [entry for entry in story if entry.startswith("write")]
    assert sum("append plan/" in entry for entry in writes) >= 16
    assert sum("put generation/" in entry for entry in writes) == 2
    assert sum("compare_and_set session" in entry for entry in writes) == 3
    assert any("put_many" in entry for entry in writes), "the quarantine"
    bare = [pair for pair in pairwise(story) if all(entry.startswith("write") for entry in pair)]
    assert not bare, story
