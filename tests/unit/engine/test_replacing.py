"""The engine replaces whom the planner names: that life of that loader, once."""

from __future__ import annotations

import asyncio

import pytest

from dataloader_svc.engine import replacing
from dataloader_svc.engine.base import RoleState, RoleStatus
from dataloader_svc.engine.replacing import replace_slow
from dataloader_svc.errors import StoreUnreachable
from dataloader_svc.store.memory import MemoryStore
from dataloader_svc.store.replaced_log import Replaced, add_replaced, replaced


class Engine:
    """Notes what it is asked for; loader-0 serves at "b"."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, float]] = []

    def roles(self) -> dict[str, RoleStatus]:
        return {"loader-0": RoleStatus("loader-0", RoleState.READY, address="b")}

    async def replace(self, name: str, address: str, *, grace_s: float) -> bool:
        self.asked.append((name, address, grace_s))
        return address == "b"


class Away(MemoryStore):
    """Gives no answer the second time that it is read."""

    reads = 0

    def items(self, prefix: str) -> dict[str, bytes]:
        self.reads += 1
        if self.reads == 2:
            raise StoreUnreachable("away")
        return super().items(prefix)


def row(loader: str, address: str, at: float, kind: str = "slow") -> Replaced:
    return Replaced(loader, address, kind, "is slow", step=7, at=at)


def test_each_new_entry_is_acted_on_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, store, looks = Engine(), Away(), iter(range(9))
    add_replaced(store, row("loader-0", "b", 1.0))  # of another run of the service

    async def pause(_: float) -> None:
        match next(looks):
            case 0:
                add_replaced(store, row("loader-0", "a", 2.0))  # has died by itself
                add_replaced(store, row("loader-7", "c", 3.0))  # is none of this engine's
            case 2:
                add_replaced(store, row("loader-0", "b", 4.0, kind="silent"))
            case 4:
                raise asyncio.CancelledError

    monkeypatch.setattr(replacing.asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(replace_slow(engine, store))
    assert engine.asked == [("loader-0", "a", replacing.REPLACE_GRACE_S), ("loader-0", "b", 0.0)]
    assert caplog.text.count("is replaced") == 1
    assert [each.at for each in replaced(store)] == [1.0, 2.0, 3.0, 4.0]
