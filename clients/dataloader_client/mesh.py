"""Where this process sits on the trainer's mesh.

Order of the axes, outermost first: pp, dp, cp, tp, as torch meshes are commonly built. So
`rank = ((pp * DP + dp) * CP + cp) * TP + tp`: tp peers are neighbours, pipeline stages are far apart.
A job whose order differs passes `coords` itself, or a DeviceMesh, which knows its own.
Knows nothing of the service.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from dataloader_client.errors import MeshMismatchError

AXES = ("pp", "dp", "cp", "tp")
"""Outermost to innermost."""

_DIM_NAMES = {
    "dp": "dp", "dp_replicate": "dp", "dp_shard": "dp", "data": "dp", "replicate": "dp", "fsdp": "dp",
    "cp": "cp", "context": "cp",
    "tp": "tp", "tensor": "tp",
    "pp": "pp", "pipe": "pp", "pipeline": "pp",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Sizes of the axes. dp ranks see different sequences; cp ranks share a sequence, each with its slice;
    tp ranks see the same tokens; pp ranks see the same microbatches.
    """

    dp: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            size = getattr(self, axis)
            if not isinstance(size, int) or size < 1:
                raise MeshMismatchError(
                    f"mesh axis {axis} is {size!r}; a size is a whole number of at least 1"
                )

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.dp * self.cp * self.tp * self.pp

    def coords(self, rank: int) -> Coords:
        """Coordinates of a global rank, in the order of AXES."""
        if not 0 <= rank < self.world_size:
            raise MeshMismatchError(
                f"rank {rank} is not on {self}, which has ranks 0 to {self.world_size - 1}"
            )
        place = {}
        for axis in reversed(AXES):
            rank, place[axis] = divmod(rank, getattr(self, axis))
        return Coords(**place)

    def rank(self, coords: Coords) -> int:
        """The inverse of `coords`."""
        rank = 0
        for axis in AXES:
            rank = rank * getattr(self, axis) + getattr(coords, axis)
        return rank

    def __str__(self) -> str:
        return "mesh " + ",".join(f"{axis}={getattr(self, axis)}" for axis in AXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coords:
    """One rank's place on each axis, from 0."""

    dp: int = 0
    cp: int = 0
    tp: int = 0
    pp: int = 0

    def check(self, mesh: Mesh) -> Self:
        """Itself; MeshMismatchError names the axis that lies outside `mesh`."""
        for axis in AXES:
            place, size = getattr(self, axis), getattr(mesh, axis)
            if not 0 <= place < size:
                raise MeshMismatchError(f"{axis} rank {place} is not in 0 to {size - 1} of {mesh}")
        return self


@runtime_checkable
class DeviceMesh(Protocol):
    """What is needed of `torch.distributed.device_mesh.DeviceMesh`."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None: ...
    def size(self, mesh_dim: int | None = None) -> int: ...
    def get_local_rank(self, mesh_dim: str | int | None = None) -> int: ...


def resolve(
    mesh: Mesh | DeviceMesh | Mapping[str, int] | None,
    *,
    rank: int | None = None,
    coords: Coords | None = None,
    dp_rank: int | None = None,
    dp_size: int | None = None,
) -> tuple[Mesh | None, Coords | None]:
    """Mesh and place from whatever the caller gave; (None, None) where nothing says, so that the service's
    own default counts.

    Without arguments: torch.distributed, if it is initialised, every rank being a dp rank.
    """
    if dp_rank is not None or dp_size is not None:
        if mesh is not None or rank is not None or coords is not None or dp_rank is None or dp_size is None:
            raise MeshMismatchError(
                "give dp_rank and dp_size together, and then neither mesh, rank nor coords"
            )
        mesh, coords = Mesh(dp=dp_size), Coords(dp=dp_rank)
    if isinstance(mesh, Mapping):
        mesh = Mesh(**mesh)
    if mesh is None:
        return _from_surroundings(rank, coords)
    if not isinstance(mesh, Mesh):
        if rank is not None or coords is not None:
            raise MeshMismatchError(
                "a DeviceMesh knows this rank's place: give neither rank nor coords with it"
            )
        return from_device_mesh(mesh)
    if coords is None:
        if rank is None:
            rank = _distributed_rank(mesh)
        coords = mesh.coords(rank)
    return mesh, coords.check(mesh)


def from_device_mesh(mesh: DeviceMesh) -> tuple[Mesh, Coords]:
    """Sizes and place by the mesh's dim names; several data-parallel dims (replicate, shard) are joined."""
    names = mesh.mesh_dim_names
    if not names:
        raise MeshMismatchError("the DeviceMesh has no mesh_dim_names: name its dims pp, dp, cp, tp")
    sizes, places = dict.fromkeys(AXES, 1), dict.fromkeys(AXES, 0)
    for dim, name in enumerate(names):
        axis = _DIM_NAMES.get(name)
        if axis is None:
            raise MeshMismatchError(
                f"DeviceMesh dim {name!r} is none of {', '.join(_DIM_NAMES)}; pass mesh=Mesh(...) and coords"
            )
        sizes[axis] *= mesh.size(dim)
        places[axis] = places[axis] * mesh.size(dim) + mesh.get_local_rank(dim)
    return Mesh(**sizes), Coords(**places)


class ParallelState(Protocol):
    """What is needed of `megatron.core.parallel_state`, or of a module with its getters."""

    def get_data_parallel_rank(self) -> int: ...
    def get_data_parallel_world_size(self) -> int: ...
    def get_context_parallel_rank(self) -> int: ...
    def get_context_parallel_world_size(self) -> int: ...
    def get_tensor_model_parallel_rank(self) -> int: ...
    def get_tensor_model_parallel_world_size(self) -> int: ...
    def get_pipeline_model_parallel_rank(self) -> int: ...
    def get_pipeline_model_parallel_world_size(self) -> int: ...


def from_parallel_state(state: ParallelState) -> tuple[Mesh, Coords]:
    """Sizes and place by Megatron's getters, whatever its order of ranks.

        mesh, coords = from_parallel_state(megatron.core.parallel_state)
        loader = DataServiceLoader(address, mesh=mesh, coords=coords)

    Its data-parallel getters leave context parallelism out by default, as here. Experts are no axis: expert
    parallel ranks are data-parallel ranks of the data.
    """
    names = {"dp": "data", "cp": "context", "tp": "tensor_model", "pp": "pipeline_model"}
    sizes = {axis: getattr(state, f"get_{name}_parallel_world_size")() for axis, name in names.items()}
    places = {axis: getattr(state, f"get_{name}_parallel_rank")() for axis, name in names.items()}
    mesh = Mesh(**sizes)
    return mesh, Coords(**places).check(mesh)


def _from_surroundings(rank: int | None, coords: Coords | None) -> tuple[Mesh | None, Coords | None]:
    if rank is not None or coords is not None:
        raise MeshMismatchError(
            "rank or coords without a mesh: pass mesh=Mesh(dp=...), or dp_rank and dp_size"
        )
    found = _distributed()
    if found is not None:
        mesh = Mesh(dp=found[1])
        return mesh, mesh.coords(found[0])
    ranks = launched_ranks()
    if ranks > 1:
        # Falling back to one rank here would give every rank the same data, and nobody would notice.
        raise MeshMismatchError(
            f"WORLD_SIZE is {ranks} in the environment but torch.distributed is not initialised: call "
            "init_process_group first, or pass dp_rank and dp_size"
        )
    return None, None


def launched_ranks() -> int:
    """Ranks of the job that this process is one of: by torch.distributed, else by what a launcher has put in
    the environment (RANK, WORLD_SIZE), else 1.
    """
    found = _distributed()
    if found is not None:
        return found[1]
    world_size = os.environ.get("WORLD_SIZE", "")
    return int(world_size) if "RANK" in os.environ and world_size.isdigit() else 1


def _distributed_rank(mesh: Mesh) -> int:
    if mesh.world_size == 1:
        return 0
    found = _distributed()
    if found is None:
        raise MeshMismatchError(
            f"{mesh} has {mesh.world_size} ranks: say which this is, with rank= or coords="
        )
    if found[1] != mesh.world_size:
        raise MeshMismatchError(
            f"{mesh} has {mesh.world_size} ranks but torch.distributed has {found[1]}: correct the mesh"
        )
    return found[0]


def _distributed() -> tuple[int, int] | None:
    """(rank, world size), without importing torch where the trainer has not."""
    module: Any = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module.get_rank(), module.get_world_size()
