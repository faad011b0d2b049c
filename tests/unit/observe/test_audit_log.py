"""The count of a plan log finds each way in which a position can be there other than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dataloader_svc.observe.audit_log import Entry, account, mixture_findings

ROWS = {"a": 6}


def state(step: int, epoch: int, position: int, waiting: list[list[Any]], **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "sources": {"a": {"epoch": epoch, "position": position, "tokens": 10 * step}},
        "credits": {"a": 0.0},
        "largest": 10,
        "waiting": waiting,
        **more,
    }


def entry(step: int, pieces: list[tuple[int, int, int, int]], after: dict[str, Any], **more: Any) -> Entry:
    columns = np.array([(0, *piece) for piece in pieces], np.int64).reshape(-1, 5).T
    found: dict[str, Any] = {"passed_over": [], "readmitted": [], **more}
    return Entry(step, ("a",), columns, found["passed_over"], found["readmitted"], after)


def good() -> list[Entry]:
    """Two steps over the end of an epoch: a document in two pieces, one passed over, one that waits."""
    return [
        entry(0, [(0, 0, 0, 5), (0, 1, 0, 8), (0, 3, 0, 5)], state(1, 0, 5, [["a", 0, 4, 0, 9]]),
              passed_over=[("a", 0, 2)]),
        entry(1, [(0, 4, 0, 4), (0, 4, 4, 5), (0, 5, 0, 5), (1, 0, 0, 5)],
              state(2, 1, 2, [["a", 1, 1, 0, 3]])),
    ]  # fmt: skip


BASE = state(0, 0, 0, [])


def test_a_good_log_is_counted() -> None:
    found = account(BASE, good(), ROWS)
    assert found.findings == []
    assert (found.steps, found.delivered, found.passed_over, found.waiting) == (2, 6, 1, 1)


def test_from_the_middle_what_waited_comes_in_its_rest() -> None:
    entries = good()
    assert account(entries[0].state, entries[1:], ROWS).findings == []
    rest = entry(1, [(0, 4, 4, 5)], state(2, 0, 5, []))
    assert account(state(1, 0, 5, [["a", 0, 4, 4, 5]]), [rest], ROWS).findings == []


def test_skipped_steps_are_counted_apart() -> None:
    entries = good()
    for each in entries:
        each.state["skips"] = [[1, 2, "loss spike"]]
    found = account(BASE, entries, ROWS)
    assert (found.findings, found.skipped_steps, found.delivered, found.on_purpose) == ([], 1, 3, 3)


def test_readmitted_samples_come_once_more() -> None:
    entries = good()
    again = entry(2, [(0, 2, 0, 5)], state(3, 1, 2, [["a", 1, 1, 0, 3]]), readmitted=[("a", 0, 2)])
    assert account(BASE, [*entries, again], ROWS).findings == []
    assert account(entries[1].state, [again], ROWS).findings == []
    silent = entry(2, [], again.state, readmitted=[("a", 0, 2)])
    assert "position 2 was readmitted 1 times" in str(account(BASE, [*entries, silent], ROWS).findings[0])


def _drop(entries: list[Entry]) -> list[Entry]:
    return [entry(0, [(0, 0, 0, 5), (0, 1, 0, 8)], entries[0].state, passed_over=[("a", 0, 2)]), entries[1]]


def _twice(entries: list[Entry]) -> list[Entry]:
    pieces = [tuple(row[1:]) for row in entries[1].pieces.T.tolist()]
    return [entries[0], entry(1, [*pieces, (0, 0, 0, 5)], entries[1].state)]


def _half(entries: list[Entry]) -> list[Entry]:
    return [entries[0], entry(1, [(0, 4, 4, 5), (0, 5, 0, 5), (1, 0, 0, 5)], entries[1].state)]


def _both(entries: list[Entry]) -> list[Entry]:
    first = entries[0]
    return [entry(0, [tuple(row[1:]) for row in first.pieces.T.tolist()], first.state,
                  passed_over=[("a", 0, 2), ("a", 0, 3)]), entries[1]]  # fmt: skip


def _beyond(entries: list[Entry]) -> list[Entry]:
    pieces = [tuple(row[1:]) for row in entries[1].pieces.T.tolist()]
    return [entries[0], entry(1, [*pieces, (1, 4, 0, 5)], entries[1].state)]


def _gap(entries: list[Entry]) -> list[Entry]:
    return entries[1:]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_drop, "a epoch 0: position 3 is lost"),
        (_twice, "position 0 is there twice"),
        (_half, "position 4 is there twice, or lacks"),
        (_both, "position 3 comes twice"),
        (_beyond, "position 4 comes, and had come before or is not reached"),
        (_gap, "the next record is of step 1"),
    ],
)
def test_what_is_wrong_is_named(spoil: Callable[[list[Entry]], list[Entry]], words: str) -> None:
    findings = account(BASE, spoil(good()), ROWS).findings
    assert words in str(findings[0])


def test_an_epoch_that_ends_early_is_noticed_where_its_rows_are_known() -> None:
    entries = good()
    short = [entries[0], entry(1, [(0, 4, 0, 9), (1, 0, 0, 5)], entries[1].state)]
    assert "position 5 is lost" in str(account(BASE, short, ROWS).findings[0])
    assert account(BASE, short, {}).findings == []


def test_the_mixture_is_that_of_the_file_and_of_the_changes() -> None:
    def at(step: int, a: int, b: int, changes: list[dict]) -> Entry:
        sources = {"a": {"tokens": a}, "b": {"tokens": b}}
        return entry(step, [], {"sources": sources, "largest": 10, "mixture": changes})

    base = {"sources": {"a": {"tokens": 0}, "b": {"tokens": 0}}, "credits": {"a": 0.0, "b": 0.0}}
    file = [{"step": 0, "ramp": "none", "weights": {"a": 1, "b": 1}}]
    change = {"at_step": 1, "over": 0, "weights": {"a": 1.0}}
    changed = [at(0, 50, 50, []), at(1, 150, 50, [change])]
    assert mixture_findings(base, changed, file, "tokens") == ([], 0.0)
    unknown = [at(0, 50, 50, []), at(1, 150, 50, [])]
    findings, _ = mixture_findings(base, unknown, file, "tokens")
    assert "a is owed -50.0 tokens" in str(findings[0])
