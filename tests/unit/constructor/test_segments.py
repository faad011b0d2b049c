"""Shared memory of batches: what is reused, what never is, and how much of it there may be."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from dataloader_client.wire import ALIGN
from dataloader_svc.constructor import segments as module
from dataloader_svc.constructor.segments import PAGE, Segments

MIB = 2**20


def filled(segments, num_bytes, value=1, *, owner=0, shares=1):
    """An arena with one array of so many bytes."""
    arena = segments.arena(owner, shares, num_bytes)
    array = arena.empty(num_bytes, np.uint8)
    array.fill(value)
    return arena, array


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_arrays_lie_aligned_in_one_piece_of_memory_and_are_never_copied_twice():
    segments = Segments(MIB)
    arena = segments.arena(0, 1, 10_000)
    first = arena.empty((3, 5), np.float32)
    second = arena.empty(7, np.int64)
    outside = np.arange(12, dtype=np.int32).reshape(3, 4).T
    placed = arena.place(outside)
    assert (first.shape, first.dtype, second.shape, second.dtype) == ((3, 5), np.float32, (7,), np.int64)
    start = arena.root.ctypes.data
    for array in (first, second, placed):
        assert array.base is arena.root
        assert array.ctypes.data % ALIGN == 0
        assert 0 <= array.ctypes.data - start <= arena.segment.resident - array.nbytes
    assert np.array_equal(placed, outside)
    assert placed.flags.c_contiguous
    assert arena.place(first[1:]) is not None
    assert arena.place(first[1:]).ctypes.data == first[1:].ctypes.data
    assert arena.whole


def test_pages_are_there_before_they_are_written_and_only_as_many_as_are_used():
    segments = Segments(64 * MIB)
    arena = segments.arena(0, 1, 32 * MIB)
    arena.empty(10, np.uint8)
    assert arena.segment.resident == PAGE
    arena.empty(3 * PAGE, np.uint8)
    assert arena.segment.resident == 4 * PAGE
    assert os.fstat(arena.segment.descriptor).st_blocks * 512 == 4 * PAGE
    assert segments.resident_bytes == 4 * PAGE


def test_memory_is_built_in_again_only_when_nobody_looks_at_it_any_more():
    segments = Segments(4 * MIB)
    arena, array = filled(segments, MIB, 7)
    first, view = arena.segment, array[5:9]
    root = arena.root
    assert segments.lease(root, "reader") is first
    del arena, array, root
    assert filled(segments, MIB)[0].segment is not first  # a view lives here
    del view
    assert filled(segments, MIB)[0].segment is not first  # a reader has it
    segments.release(first, "reader")
    assert filled(segments, MIB)[0].segment is first


def test_a_smaller_batch_gives_back_what_it_does_not_need():
    segments = Segments(4 * MIB)
    arena, array = filled(segments, MIB)
    segment = arena.segment
    del arena, array
    again = segments.arena(0, 1, MIB // 4)
    assert again.segment is segment
    assert segment.resident == MIB // 4
    assert os.fstat(segment.descriptor).st_blocks * 512 == MIB // 4


def test_what_is_free_and_what_is_lent_beyond_the_window_is_bounded():
    segments = Segments(3 * MIB)
    before = descriptors()
    held = [filled(segments, MIB, owner=number) for number in range(8)]
    leased = [number for number, (arena, _) in enumerate(held) if segments.lease(arena.root, number)]
    assert leased == [0, 1, 2]
    assert segments.lent == (3 * MIB, 3)
    assert segments.resident_bytes == 8 * MIB  # built: the window's to count
    kept = [held[number][0].segment for number in leased]
    del held
    assert segments.resident_bytes == 3 * MIB  # as much is lent, so nothing is kept warm
    for number, segment in zip(leased, kept, strict=True):
        segments.release(segment, number)
    assert segments.lent == (0, 0)
    assert segments.resident_bytes == 3 * MIB
    del kept, segment
    segments.close()
    assert segments.resident_bytes == 0
    assert descriptors() == before


def test_nothing_is_kept_warm_when_nobody_is_there():
    segments = Segments(4 * MIB)
    before = descriptors()
    held = [filled(segments, MIB) for _ in range(3)]
    root = held[0][0].root
    lent = segments.lease(root, "stopped")
    del held[1:]
    segments.cool()
    assert segments.resident_bytes == MIB
    del held, root
    segments.cool()
    assert segments.resident_bytes == MIB  # a reader has it mapped
    segments.release(lent, "stopped")
    del lent
    segments.cool()
    assert segments.resident_bytes == 0
    assert descriptors() == before
    assert filled(segments, MIB)[0].whole, "the next one is built in new memory"


def test_one_that_gives_nothing_back_takes_no_others_share():
    segments = Segments(4 * MIB)
    held = [filled(segments, MIB, owner=0, shares=2) for _ in range(3)]
    assert [segments.lease(arena.root, "slow") is not None for arena, _ in held] == [True, True, False]
    other = [filled(segments, MIB, owner=1, shares=2) for _ in range(2)]
    assert all(segments.lease(arena.root, "quick") for arena, _ in other)
    # A segment that is lent already costs nothing more: the ranks that share a batch share it.
    assert segments.lease(held[0][0].root, "its peer")
    assert segments.lent == (4 * MIB, 5)


def test_without_memory_a_batch_is_built_elsewhere_and_not_lent(monkeypatch, caplog):
    segments = Segments(4 * MIB)
    arena = segments.arena(0, 1, MIB)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "posix_fallocate", full)
    array = arena.empty((4, 4), np.int64)
    assert array.base is not arena.root
    assert not arena.whole
    assert "No space left" in caplog.text
    monkeypatch.setattr(module.os, "memfd_create", full)
    assert segments.arena(0, 1, 64 * MIB) is None
    with pytest.raises(OSError, match="No space"):
        Segments(MIB)


def test_more_than_was_bounded_is_no_bus_error():
    segments = Segments(4 * MIB)
    arena = segments.arena(0, 1, 100)
    array = arena.empty(arena.segment.capacity + 1, np.uint8)
    array.fill(1)
    assert not arena.whole


def test_its_size_can_not_be_changed_nor_its_bytes_by_readers():
    segments = Segments(MIB)
    arena, array = filled(segments, 1000, 3)
    descriptor = arena.segment.read_only()
    try:
        for size in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(arena.segment.descriptor, size)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
        assert os.pread(descriptor, 3, 0) == b"\3\3\3"
    finally:
        os.close(descriptor)
    assert array[0] == 3


def test_builders_in_threads_never_share_a_segment():
    segments = Segments(64 * MIB)
    problems = []

    def build(number):
        for turn in range(200):
            arena, array = filled(segments, 64 * PAGE, number)
            if (array != number).any():
                problems.append((number, turn))
            del arena, array

    threads = [threading.Thread(target=build, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert segments.resident_bytes <= 4 * 64 * PAGE
