"""The state of a `DataServiceLoader` in `torch.distributed.checkpoint` (DCP): `LoaderState`.

    state = {"model": ..., "optimizer": ..., "data": LoaderState(loader)}
    dcp.save(state, checkpoint_id=path)
    dcp.load(state, checkpoint_id=path)

Imports nothing of torch: DCP knows a stateful object by its two methods.
"""

from __future__ import annotations

import json
from typing import Any

from dataloader_client.device import Loader

_KEY = "json"


class LoaderState:
    """`loader` for DCP, which writes it once for all ranks and goes on from it on any number of them.

    Not the loader itself: DCP reads a checkpoint key by key into the dict that `state_dict` returns before
    loading, so what a fresh loader has no key for would be left out and not missed. As one text it is there
    whole, or DCP raises. Take it at a step boundary, as `DataServiceLoader.state_dict`.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """`{"json": text}`, the same on every rank."""
        return {_KEY: json.dumps(self._loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from it; raises what `DataServiceLoader.load_state_dict` raises."""
        self._loader.load_state_dict(json.loads(state_dict[_KEY]))
