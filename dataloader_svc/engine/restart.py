"""When a dead role is started again, and when the engine gives up. Pure: times come in as numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Delays double from `first_delay_s` to `max_delay_s`, and start anew after a life of `settled_s`.

    The first delay is short because trainers wait. `max_unready_deaths` deaths in a row without having been
    ready are a crash loop, however long they took: with these defaults 1.5 s of delays, plus five starts.
    """

    first_delay_s: float = 0.1
    factor: float = 2.0
    max_delay_s: float = 10.0
    settled_s: float = 30.0
    max_unready_deaths: int = 5


class RestartHistory:
    """The deaths of one role."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._unready_deaths = 0
        self._delay_s = policy.first_delay_s

    def died(self, *, was_ready: bool, lived_s: float) -> float | None:
        """Note a death: the seconds to wait before the next life, or None to give up."""
        policy = self._policy
        self._unready_deaths = 0 if was_ready else self._unready_deaths + 1
        if self._unready_deaths >= policy.max_unready_deaths:
            return None
        if was_ready and lived_s >= policy.settled_s:
            self._delay_s = policy.first_delay_s
        delay_s = self._delay_s
        self._delay_s = min(delay_s * policy.factor, policy.max_delay_s)
        return delay_s
