"""Who is silent for too long, and who is only at work or waiting."""

from __future__ import annotations

from dataloader_svc.constructor.events import Asked, Built, Delivered, GaveUp, Left, Rank
from dataloader_svc.constructor.readers import Readers, Silent, described

A, B = Rank(0, 0, 0, 0), Rank(1, 0, 1, 0)


def readers() -> Readers:
    return Readers([A, B], limit_s=10.0, now=0.0)


def test_each_is_named_once_until_it_comes_back():
    found = readers()
    found.note(Asked(4, A), 1.0)
    found.note(Delivered(4, A), 2.0)
    assert found.silent(9.9) == []
    assert found.silent(10.0) == [Silent(B, None, 10.0)]
    assert found.silent(11.9) == []
    assert found.silent(12.5) == [Silent(A, 4, 10.5)]
    assert (found.let_go, found.are_gone) == ({A, B}, True)
    found.note(Asked(5, B), 30.0)
    found.note(GaveUp(5, B), 31.0)
    assert (found.let_go, found.are_gone) == ({A}, False)
    assert found.silent(41.0) == [Silent(B, 5, 10.0)]


def test_who_waits_is_there_for_however_long():
    found = readers()
    for step in (4, 5):
        found.note(Asked(step, A), 1.0)
    found.note(Delivered(4, A), 2.0)
    found.note(Built(4, 100), 3.0)  # says nothing of ranks
    assert found.silent(1000.0) == [Silent(B, None, 1000.0)]
    found.note(Delivered(5, A), 1001.0)
    assert found.silent(1010.0) == []
    assert found.silent(1011.0) == [Silent(A, 5, 10.0)]


def test_who_has_left_is_not_missed():
    found = readers()
    found.note(Asked(4, A), 1.0)
    found.note(Left(A), 2.0)
    found.note(GaveUp(4, A), 3.0)  # its read ended with it
    found.note(Left(B), 4.0)
    assert found.silent(100.0) == []
    assert (found.let_go, found.are_gone) == (set(), True)


def test_people_are_told_who_what_and_what_to_do():
    text = described([Silent(B, 16, 612.0)], 3 * 2**20, 600.0, all_of_them=False)
    assert text.startswith("rank without a read for 612 s: dp=1,tp=1 asked for step 16 last. ")
    assert "3.0 MiB, is dropped" in text
    assert "constructor.idle_timeout, 600 s" in text
    assert "ended, and all ranks started again, together, from the last checkpoint" in text
    many = [Silent(Rank(number, 0, 0, 0), None, 700.0 - number) for number in range(6)]
    text = described(many, 0, 600.0, all_of_them=True)
    assert text.startswith("no rank has asked for anything for 695 s: dp=0 has never read; dp=1 ")
    assert "dp=3 has never read; and 2 more. " in text
    assert "dp=4" not in text
