"""What code around a torch `DataLoader` says to its loader, and what a `DataServiceLoader` answers.

Each name of torch's constructor is either answered (`set_epoch`) or refused in words that say where the thing
is decided now: mostly in the configuration, once for all ranks. Nothing is quietly ignored: an argument that
had no effect would be believed. Knows no service and no torch.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

_WORKERS = "the service reads and decodes, in its own processes: `loader: {count: N}` in the configuration"
_ORDER = "order is of the configuration: `shuffle` of each source, `seed`, and the weights of `mixture`"
_PINNING = "wrap the loader: DeviceLoader(loader, device) pins and copies ahead (dataloader_client.device)"

POINTERS: Mapping[str, str] = {
    "dataset": "data is named by the configuration, under `sources`; the first argument is an address",
    "batch_size": "`global_batch` and `sequence_length` of the configuration say what a step is of; each "
    "rank gets its part of it, `global_batch.per_microbatch` sequences at a time",
    "shuffle": _ORDER,
    "sampler": f"ranks are given different data by mesh=; {_ORDER}",
    "batch_sampler": f"steps are packed by the service; {_ORDER}",
    "num_workers": _WORKERS,
    "collate_fn": "the service packs: see `layout`, `transforms` of a source and `strategy`; change what "
    "comes out with a generator around the loader",
    "pin_memory": _PINNING,
    "pin_memory_device": _PINNING,
    "drop_last": "`last_batch: drop` of the configuration, for all ranks alike",
    "timeout": "timeout_s=, in seconds; 300 by default",
    "worker_init_fn": _WORKERS,
    "multiprocessing_context": _WORKERS,
    "persistent_workers": _WORKERS,
    "prefetch_factor": "prefetch=, in steps of this rank; 2 by default",
    "generator": "randomness is keyed by `seed` of the configuration and the sample, in no generator's order",
    "in_order": "steps always come in order, and the same on every run",
    "snapshot_every_n_steps": "state_dict() is cheap and exact after every batch",
}
"""Arguments and attributes of torch's DataLoader and torchdata's StatefulDataLoader: who decides them."""


def refuse(arguments: Mapping[str, Any], function: Any) -> None:
    """TypeError for `arguments` that `function` does not have, with a pointer for each that torch's has."""
    if not arguments:
        return
    known = [name for name in inspect.signature(function).parameters if name not in ("self", "others")]
    lines = []
    for name in arguments:
        near = difflib.get_close_matches(name, known, 1)
        guess = f"did you mean {near[0]}=?" if near else f"there are {', '.join(known[1:])}"
        lines.append(f"{name}: {POINTERS.get(name, guess)}")
    raise TypeError("DataServiceLoader has no such argument:\n  " + "\n  ".join(lines))


class Habits:
    """The part of `DataServiceLoader` that code written for a torch DataLoader meets."""

    def __len__(self) -> NoReturn:
        raise TypeError(
            "a DataServiceLoader has no length: where the data ends depends on the mixture and what is "
            "exhausted first. Count steps by batch.step, or bound the loop with itertools.islice"
        )

    def set_epoch(self, epoch: int) -> None:
        """Nothing to do: each source is in an epoch of its own and orders each of them anew, by (seed,
        source, epoch), and the same after a resume. Here because trainers call it on whatever has it.
        """

    if not TYPE_CHECKING:  # to a type checker, every name would be an attribute

        def __getattr__(self, name: str) -> NoReturn:
            # Reached only for what is no attribute. An AttributeError, so that `hasattr` and `getattr` with
            # a default, by which trainers ask what they have, go on to work.
            pointer = POINTERS.get(name)
            text = f"{type(self).__name__} has no attribute {name!r}"
            raise AttributeError(f"{text}: {pointer}" if pointer else text, name=name, obj=self)
