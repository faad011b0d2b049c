"""Batches for ranks that have the same: one of them reads, and broadcasts to its group: `BroadcastLoader`.

    loader = BroadcastLoader(address, mesh=mesh, coords=coords, group=tp_group)

For tp peers on several hosts: the service sends each batch once for all of them. On one host nothing is
saved, since they all map what was built once. Needs torch.distributed, and a group that broadcasts from the
CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NoReturn, Self

import numpy as np
import torch
import torch.distributed as dist

from dataloader_client import errors, wire
from dataloader_client.batch import Batch, Manifest
from dataloader_client.errors import DataServiceError, MeshMismatchError
from dataloader_client.loader import DataServiceLoader
from dataloader_client.mesh import Coords, DeviceMesh, Mesh, resolve

_PLAIN = tuple(
    spec.name for spec in fields(Batch) if spec.name not in ("numpy", "manifest") and spec.name[0] != "_"
)
"""What of a batch is neither array nor manifest: values of JSON."""


class BroadcastLoader:
    """The microbatches of `DataServiceLoader`, the same on all ranks of `group`, which are the tp peers.

    address, options   as of `DataServiceLoader`, which the first rank of `group` makes; the others connect
                       to nothing, and need no token
    mesh, rank, coords   as there: the place of this rank on the whole mesh, tp included
    group              this rank's tp peers, each with every call of `next` and `load_state_dict`

    Whatever the first rank meets, all meet: the end of the data, or its error. `state_dict` asks nobody.
    `reader` is the first rank's DataServiceLoader, for `report`, `commit` and `stats`; None on the others.
    Raises MeshMismatchError where `group` is no group of tp peers.
    """

    def __init__(
        self,
        address: str,
        *,
        group: dist.ProcessGroup,
        mesh: Mesh | DeviceMesh | Mapping[str, int],
        rank: int | None = None,
        coords: Coords | None = None,
        **options: Any,
    ) -> None:
        whole, place = resolve(mesh, rank=rank, coords=coords)
        assert whole is not None, "a mesh was given"
        assert place is not None, "and so this rank has a place on it"
        if dist.get_world_size(group) != whole.tp:
            raise MeshMismatchError(
                f"group has {dist.get_world_size(group)} ranks and {whole} {whole.tp} tp peers: give the "
                "process group of this rank's tp peers"
            )
        self.mesh, self.coords = whole, place
        self._group, self._first = group, dist.get_global_rank(group, 0)
        self.reader: DataServiceLoader | None = None
        self._state: dict[str, Any] = {}
        if dist.get_rank(group) == 0:
            self._tell(lambda: self._read_from(address, options))
        else:
            self._hear()

    def _read_from(self, address: str, options: Mapping[str, Any]) -> wire.Frame:
        """Join, on a mesh without tp: for the service, this group is one rank."""
        mesh, coords = replace(self.mesh, tp=1), replace(self.coords, tp=0)
        self.reader = DataServiceLoader(address, mesh=mesh, coords=coords, **options)
        return wire.Frame({}, {"state": self.reader.state_dict()})

    def __iter__(self) -> Self:
        if self.reader is not None:
            iter(self.reader)  # one of evaluation begins anew
        return self

    def __next__(self) -> Batch:
        frame = self._hear() if self.reader is None else self._tell(self._next)
        if "end" in frame.meta:
            raise StopIteration
        return _batch_of(frame)

    def _next(self) -> wire.Frame:
        assert self.reader is not None, "the first rank reads"
        before = self._state.get("service")
        batch = next(self.reader, None)
        state = self.reader.state_dict()
        if state["service"] is before:  # it is of a step, not of a microbatch, and not small
            state = {**state, "service": None}
        if batch is None:
            return wire.Frame({}, {"end": True, "state": state})
        values = {name: getattr(batch, name) for name in _PLAIN}
        meta = {"batch": values, "sources": list(batch.manifest.sources), "state": state}
        return wire.Frame(batch.numpy | batch.manifest.columns, meta)

    def state_dict(self) -> dict[str, Any]:
        """As `DataServiceLoader.state_dict`: of the batches handed out, on every rank."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; all ranks must."""
        loader = self.reader
        if loader is None:
            self._hear()
            return

        def load() -> wire.Frame:
            loader.load_state_dict(state)
            return wire.Frame({}, {"state": loader.state_dict()})

        self._tell(load)

    def close(self) -> None:
        """End the connection of the first rank. Idempotent; the others may go on to read nothing."""
        if self.reader is not None:
            self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- between the ranks

    def _tell(self, make: Any) -> wire.Frame:
        """Broadcast what `make` returns; or what it raises, which is raised here too."""
        try:
            frame: wire.Frame = make()
        except DataServiceError as error:
            told = {"error": type(error).__name__, "text": str(error)}
            self._send(wire.Frame({}, told))
            raise
        self._send(frame)
        self._note(frame)
        return frame

    def _send(self, frame: wire.Frame) -> None:
        messages = [np.frombuffer(message, np.uint8) for message in wire.encode(frame)]
        sizes = torch.tensor([len(messages[0]), sum(map(len, messages))])
        dist.broadcast(sizes, self._first, group=self._group)
        dist.broadcast(torch.from_numpy(np.concatenate(messages)), self._first, group=self._group)

    def _hear(self) -> wire.Frame:
        """What the first rank has sent; raises what it met."""
        sizes = torch.zeros(2, dtype=torch.int64)
        dist.broadcast(sizes, self._first, group=self._group)
        header, total = sizes.tolist()
        data = torch.empty(total, dtype=torch.uint8)
        dist.broadcast(data, self._first, group=self._group)
        parts = [
            data.numpy()[:header].tobytes(),
            *([data.numpy()[header:].tobytes()] if total > header else []),
        ]
        frame = wire.decode(parts)
        if "error" in frame.meta:
            _raise(frame.meta)
        self._note(frame)
        return frame

    def _note(self, frame: wire.Frame) -> None:
        state = frame.meta["state"]
        if state["service"] is None:
            state = {**state, "service": self._state["service"]}
        self._state = state


def _batch_of(frame: wire.Frame) -> Batch:
    spans = {name: array for name, array in frame.arrays.items() if name.startswith("span_")}
    arrays = {name: array for name, array in frame.arrays.items() if name not in spans}
    manifest = Manifest(tuple(frame.meta["sources"]), spans)
    return Batch(numpy=arrays, manifest=manifest, **frame.meta["batch"])


def _raise(meta: Mapping[str, Any]) -> NoReturn:
    raise getattr(errors, meta["error"], DataServiceError)(
        f"{meta['text']} (met by the first of the tp peers)"
    )
