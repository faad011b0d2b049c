"""Clients that read a real service step by step, and fingerprints of what they got."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from dataloader_client import Batch, Coords, DataServiceLoader, Mesh

STEP_S = 90.0
"""A step that takes longer hangs: a role is back within seconds, on a busy machine within twenty."""

Fingerprint = dict[str, str]


def fingerprint(batches: Sequence[Batch]) -> Fingerprint:
    """Of one step of one rank: hashes of all that a trainer can see, measurements aside."""
    found: Fingerprint = {}
    for batch in batches:
        arrays = {**batch.numpy, **batch.manifest.columns}
        for name, array in arrays.items():
            data = f"{array.dtype}{array.shape}".encode() + array.tobytes()
            found[f"{batch.microbatch}/{name}"] = hashlib.blake2b(data, digest_size=8).hexdigest()
        others = (batch.manifest.sources, batch.presence, batch.max_seqlen, batch.num_tokens)
        found[f"{batch.microbatch}/rest"] = repr((*others, batch.loss_weight_sum, batch.digest))
    return found


def take_step(loader: DataServiceLoader) -> list[Batch]:
    """All microbatches of the next step; none at the end of the data."""
    batches: list[Batch] = []
    for batch in loader:
        batches.append(batch)
        if batch.is_last_microbatch:
            break
    return batches


def assert_equal(found: Mapping[int, Fingerprint], expected: Mapping[int, Fingerprint]) -> None:
    """Every step of `found` is as in `expected`; says the first that is not, and its fields."""
    for step, prints in sorted(found.items()):
        other = expected[step]
        fields = [
            name for name in sorted(prints.keys() | other.keys()) if prints.get(name) != other.get(name)
        ]
        assert not fields, f"step {step} differs in {fields}"


class Reader:
    """One rank that reads in a thread, as far as it is allowed to, at full speed.

    steps    what `keep` makes of each step's batches, by step; `states` what `state_dict` gave after each
    """

    def __init__(
        self,
        address: str,
        *,
        mesh: Mesh | None = None,
        coords: Coords | None = None,
        keep: Callable[[Sequence[Batch]], Any] = fingerprint,
        **options: Any,
    ):
        self.steps: dict[int, Any] = {}
        self._keep = keep
        self.states: dict[int, dict[str, Any]] = {}
        self._loader = DataServiceLoader(address, mesh=mesh or Mesh(), coords=coords or Coords(), **options)
        self._allowed = 0
        self._stop = False
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def allow(self, steps: int) -> None:
        """Let it read `steps` more."""
        with self._change:
            self._allowed += steps
            self._change.notify_all()

    def wait(self, count: int | None = None) -> None:
        """Wait until it has read `count` steps, or all that it may; raises what its loop raised."""
        with self._change:
            wanted = self._allowed if count is None else count
            self._change.wait_for(lambda: len(self.steps) >= wanted or self._error is not None, STEP_S)
            if self._error is not None:
                raise self._error
            assert len(self.steps) >= wanted, f"no step after {len(self.steps)} steps in {STEP_S} s"

    def close(self) -> None:
        """End the thread and the client."""
        with self._change:
            self._stop = True
            self._change.notify_all()
        self._loader.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while self._may():
                batches = take_step(self._loader)
                with self._change:
                    self.steps[batches[0].step] = self._keep(batches)
                    self.states[batches[0].step] = self._loader.state_dict()
                    self._change.notify_all()
        except BaseException as error:
            with self._change:
                self._error = error
                self._change.notify_all()

    def _may(self) -> bool:
        with self._change:
            self._change.wait_for(lambda: self._stop or len(self.steps) < self._allowed)
            return not self._stop
