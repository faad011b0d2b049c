"""Whose threads run a medium: those that decode, or those that wait for a worker process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from dataloader_svc.loader.threads import run_in_order


def test_results_come_in_order_from_several_executors() -> None:
    later = threading.Event()

    def first() -> str:
        later.wait()
        return "first"

    def second() -> str:
        later.set()
        return "second"

    with ThreadPoolExecutor(1) as waiting, ThreadPoolExecutor(1) as pool:
        assert list(run_in_order([(waiting, first), (pool, second)])) == ["first", "second"]


def test_one_that_raises_ends_those_that_have_not_begun() -> None:
    begun, go_on, ran = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go_on.wait()

    def fail() -> None:
        begun.wait()
        raise ValueError("here")

    with ThreadPoolExecutor(1) as waiting, ThreadPoolExecutor(1) as pool:
        tasks = [(pool, fail), (waiting, slow), *((waiting, partial(ran.append, i)) for i in range(3))]
        with pytest.raises(ValueError, match="here"):
            list(run_in_order(tasks))
        go_on.set()
    assert ran == []
