"""What `serve` makes of signals, whichever line of it they find. Processes: integration/test_serve.py."""

from __future__ import annotations

import contextlib
import signal

import pytest

from dataloader_svc.cli.serve import _stop_on_signals


def test_the_first_one_interrupts_and_a_second_does_not_disturb() -> None:
    with _stop_on_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


def test_a_job_is_told_and_not_interrupted() -> None:
    told: list[None] = []
    with _stop_on_signals() as signals:
        signals.go_to(lambda: told.append(None))
        signal.raise_signal(signal.SIGTERM)
    assert told == [None]


def test_one_that_was_passed_over_is_not_forgotten() -> None:
    """As in a `__del__`, which Python lets raise nothing."""
    told: list[None] = []
    with _stop_on_signals() as signals:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signals.go_to(lambda: told.append(None))
    assert not told


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with _stop_on_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
