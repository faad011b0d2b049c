"""The block table: who is dropped, what is refused, what is counted; any order of events keeps the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_svc.errors import Overloaded
from dataloader_svc.loader.core import (
    BlockTable,
    Failed,
    Forgotten,
    Read,
    ReadInPart,
    Released,
    Used,
    Wanted,
)
from dataloader_svc.sample import BlockId


def block(number: int) -> BlockId:
    return BlockId("web", 0, number)


def table_with(limit: int, *sizes: int) -> BlockTable:
    """Blocks 0, 1, ... of these sizes, read in that order."""
    table = BlockTable(limit)
    for number, size in enumerate(sizes):
        assert table.apply(Wanted(block(number), size)) == ()
        assert table.apply(Read(block(number), size)) == ()
    table.validate()
    return table


def test_least_recently_used_goes_first() -> None:
    table = table_with(100, 30, 30, 30)
    table.apply(Used(block(0)))
    assert table.apply(Wanted(block(3), 35)) == (block(1),)
    table.validate()
    assert block(0) in table
    assert table.held_bytes == 60


def test_what_is_released_goes_at_once() -> None:
    table = table_with(100, 30, 30, 30)
    assert table.apply(Released(block(2))) == (block(2),)
    assert (table.held_blocks, table.held_bytes, table.leased_bytes) == (2, 60, 60)
    assert table.apply(Wanted(block(3), 35)) == ()
    table.validate()


def test_as_many_go_as_needed() -> None:
    table = table_with(100, 30, 30, 30)
    assert table.apply(Wanted(block(3), 75)) == (block(0), block(1), block(2))


def test_room_for_blocks_being_read_is_kept() -> None:
    table = table_with(100, 30)
    assert table.apply(Wanted(block(1), 60)) == ()
    assert table.apply(Wanted(block(2), 40)) == (block(0),)
    assert not table.fits(1)
    with pytest.raises(Overloaded, match="may take 1 bytes; 100 of loader.memory 100"):
        table.apply(Wanted(block(3), 1))
    assert table.apply(Failed(block(2))) == ()
    assert table.apply(Wanted(block(3), 40)) == ()
    table.validate()


def test_a_block_larger_than_estimated_pushes_others_out_or_goes_itself() -> None:
    table = table_with(100, 30)
    table.apply(Wanted(block(1), 10))
    assert table.apply(Read(block(1), 90)) == (block(0),)
    table.apply(Wanted(block(2), 10))
    assert set(table.apply(Read(block(2), 101))) == {block(1), block(2)}
    table.validate()
    assert table.held_bytes == 0


def test_rereads_are_counted_where_memory_was_short() -> None:
    table = table_with(60, 30, 30)
    table.apply(Wanted(block(2), 30))
    table.apply(Read(block(2), 30))
    assert (table.reads, table.rereads) == (3, 0)
    assert (table.leased_blocks, table.leased_bytes, table.held_bytes) == (3, 90, 60)
    table.apply(Wanted(block(0), 30))
    assert (table.reads, table.rereads) == (4, 1)
    # A released block was not needed any more: reading it anew is no loss, whether it was still held or not.
    table.apply(Read(block(0), 30))
    assert table.apply(Released(block(0))) == (block(0),)
    assert table.apply(Released(block(1))) == ()
    assert (table.leased_blocks, table.leased_bytes) == (1, 30)
    for number in (0, 1):
        table.apply(Wanted(block(number), 10))
    assert table.rereads == 1


def table_short_of_room() -> BlockTable:
    """Three blocks of 30 in 70: 0 had to go for 2."""
    table = table_with(70, 30, 30)
    assert table.apply(Wanted(block(2), 30)) == (block(0),)
    table.apply(Read(block(2), 30))
    return table


def test_where_blocks_in_use_do_not_fit_those_held_stay_whatever_else_is_asked_for() -> None:
    """Round and round, if the least recently used went, each read would push out what is needed next."""
    table = table_short_of_room()
    assert [block(number) in table for number in range(3)] == [False, True, True]
    for turn in range(4):
        for number in (range(3), (2, 0, 1))[turn % 2]:
            if block(number) in table:
                table.apply(Used(block(number)))
            else:
                assert not table.worth_its_room(block(number), 30)
                assert table.apply(ReadInPart(block(number), 30)) == ()
            table.validate()
    assert (table.reads, table.rereads, table.held_blocks) == (7, 4, 2)
    assert (table.leased_blocks, table.leased_bytes) == (3, 90)


def test_a_block_asked_for_more_often_than_those_held_takes_their_place() -> None:
    table = table_short_of_room()
    table.apply(Used(block(1)))
    table.apply(Used(block(2)))
    for _ in range(2):
        assert not table.worth_its_room(block(0), 30)
        table.apply(ReadInPart(block(0), 30))
    assert table.worth_its_room(block(0), 60), "neither was used meanwhile"
    table.apply(Used(block(2)))
    assert table.worth_its_room(block(0), 30)
    assert not table.worth_its_room(block(0), 60)
    assert table.apply(Wanted(block(0), 30)) == (block(1),)


def test_a_block_is_worth_free_room_and_that_of_what_is_being_read_is_not_free() -> None:
    table = table_with(70, 30)
    assert table.worth_its_room(block(1), 40)
    assert not table.worth_its_room(block(1), 41), "nothing is known of its use"
    table.apply(Wanted(block(2), 40))
    assert not table.worth_its_room(block(1), 1)
    assert not BlockTable(70).worth_its_room(block(1), 71)


def test_what_was_read_in_part_and_released_is_in_use_no_more() -> None:
    table = table_with(70, 30)
    table.apply(ReadInPart(block(1), 60))
    assert (table.reads, table.rereads, table.leased_bytes) == (2, 0, 90)
    assert table.apply(Released(block(1))) == ()
    assert (table.leased_blocks, table.leased_bytes) == (1, 30)


def test_release_of_what_is_not_held_is_nothing() -> None:
    table = table_with(60, 30)
    assert table.apply(Released(block(9))) == ()
    table.validate()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["want", "read", "part", "fail", "use", "release", "forget"]),
            st.integers(0, 5),
            st.integers(1, 60),
        ),
        max_size=60,
    )
)
def test_any_order_of_events(events: list[tuple[str, int, int]]) -> None:
    table = BlockTable(100)
    held: dict[BlockId, int] = {}
    reading: set[BlockId] = set()
    for name, number, size in events:
        which = block(number)
        dropped: tuple[BlockId, ...] = ()
        if name == "want" and which not in held and which not in reading:
            fits = table.fits(size)
            try:
                dropped = table.apply(Wanted(which, size))
                assert fits
                reading.add(which)
            except Overloaded:
                assert not fits
        elif name == "read" and which in reading:
            reading.remove(which)
            held[which] = size
            dropped = table.apply(Read(which, size))
        elif name == "fail" and which in reading:
            reading.remove(which)
            table.apply(Failed(which))
        elif name == "part" and which not in held and which not in reading:
            if table.worth_its_room(which, size):
                reading.add(which)
                dropped = table.apply(Wanted(which, size))
            else:
                table.apply(ReadInPart(which, size))
        elif name == "use" and which in held:
            table.apply(Used(which))
        elif name in ("release", "forget"):
            dropped = table.apply(Released(which) if name == "release" else Forgotten(which))
            assert dropped == ((which,) if which in held else ())
        for gone in dropped:
            del held[gone]
        table.validate()
        assert {b for b in map(block, range(6)) if b in table} == held.keys()
        assert table.held_bytes == sum(held.values())
