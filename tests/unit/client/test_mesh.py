"""Who this rank is, from whatever the trainer knows."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import pytest

from dataloader_client.errors import MeshMismatchError
from dataloader_client.mesh import AXES, Coords, Mesh, from_parallel_state, resolve


def test_tp_is_innermost_and_pp_outermost():
    mesh = Mesh(dp=2, cp=3, tp=4, pp=5)
    assert mesh.coords(1) == Coords(tp=1)
    assert mesh.coords(4) == Coords(cp=1)
    assert mesh.coords(12) == Coords(dp=1)
    assert mesh.coords(24) == Coords(pp=1)
    # The same as numbering the ranks of an array whose axes are AXES.
    order = itertools.product(*(range(getattr(mesh, axis)) for axis in AXES))
    for rank, place in enumerate(order):
        assert mesh.coords(rank) == Coords(**dict(zip(AXES, place, strict=True)))
        assert mesh.rank(mesh.coords(rank)) == rank
    assert mesh.world_size == 120


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("size", [0, -1, 1.5, "2"])
def test_sizes_are_whole_numbers_from_one(axis, size):
    with pytest.raises(MeshMismatchError, match=f"mesh axis {axis} is"):
        Mesh(**{axis: size})


def test_explicit_ways():
    mesh = Mesh(dp=2, cp=2)
    assert resolve(mesh, rank=3) == (mesh, Coords(dp=1, cp=1))
    assert resolve(mesh, coords=Coords(dp=1)) == (mesh, Coords(dp=1))
    assert resolve({"dp": 2, "cp": 2}, rank=1) == (mesh, Coords(cp=1))
    assert resolve(None, dp_rank=2, dp_size=4) == (Mesh(dp=4), Coords(dp=2))
    assert resolve(Mesh()) == (Mesh(), Coords())
    assert resolve(None) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mesh": Mesh(dp=2)}, "say which this is"),
        ({"mesh": Mesh(dp=2), "rank": 2}, "rank 2 is not on mesh .* ranks 0 to 1"),
        ({"mesh": Mesh(dp=2), "coords": Coords(cp=1)}, "cp rank 1 is not in 0 to 0"),
        ({"mesh": None, "rank": 1}, "without a mesh"),
        ({"mesh": None, "dp_rank": 1}, "dp_rank and dp_size together"),
        ({"mesh": Mesh(), "dp_rank": 0, "dp_size": 1}, "neither mesh"),
        ({"mesh": None, "dp_rank": 2, "dp_size": 2}, "dp rank 2 is not in 0 to 1"),
    ],
)
def test_what_is_unclear_is_refused(arguments, text):
    with pytest.raises(MeshMismatchError, match=text):
        resolve(**arguments)


def distributed(monkeypatch, rank, size):
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: size > 0,
        get_rank=lambda: rank,
        get_world_size=lambda: size,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", module)


def test_torch_distributed_says_it(monkeypatch):
    distributed(monkeypatch, 5, 8)
    assert resolve(None) == (Mesh(dp=8), Coords(dp=5))
    assert resolve(Mesh(dp=4, tp=2)) == (Mesh(dp=4, tp=2), Coords(dp=2, tp=1))
    with pytest.raises(MeshMismatchError, match="has 4 ranks but torch.distributed has 8"):
        resolve(Mesh(dp=4))


def test_a_launcher_without_an_initialised_group_is_no_single_rank(monkeypatch):
    distributed(monkeypatch, 0, 0)
    assert resolve(None) == (None, None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(MeshMismatchError, match="WORLD_SIZE is 4 .* call init_process_group"):
        resolve(None)
    assert resolve(None, dp_rank=1, dp_size=4) == (Mesh(dp=4), Coords(dp=1))
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert resolve(None) == (None, None)


class FakeDeviceMesh:
    def __init__(self, names, sizes, place):
        self.mesh_dim_names, self._sizes, self._place = names, sizes, place

    def size(self, mesh_dim=None):
        return self._sizes[mesh_dim]

    def get_local_rank(self, mesh_dim=None):
        return self._place[mesh_dim]


def test_a_device_mesh_is_read_by_its_names():
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    mesh = FakeDeviceMesh(names, (2, 3, 4, 2, 2), (1, 2, 3, 0, 1))
    assert resolve(mesh) == (Mesh(pp=2, dp=12, cp=2, tp=2), Coords(pp=1, dp=11, cp=0, tp=1))
    with pytest.raises(MeshMismatchError, match="knows this rank's place"):
        resolve(mesh, rank=0)
    with pytest.raises(MeshMismatchError, match="'ep' is none of"):
        resolve(FakeDeviceMesh(("ep",), (2,), (0,)))
    with pytest.raises(MeshMismatchError, match="no mesh_dim_names"):
        resolve(FakeDeviceMesh(None, (2,), (0,)))


def test_megatrons_getters_say_it():
    def state(**places):
        names = {"dp": "data", "cp": "context", "tp": "tensor_model", "pp": "pipeline_model"}
        getters = {}
        for axis, (rank, size) in places.items():
            getters[f"get_{names[axis]}_parallel_rank"] = lambda rank=rank: rank
            getters[f"get_{names[axis]}_parallel_world_size"] = lambda size=size: size
        return SimpleNamespace(**getters)

    mesh, coords = from_parallel_state(state(dp=(3, 4), cp=(1, 2), tp=(7, 8), pp=(0, 2)))
    assert resolve(mesh, coords=coords) == (Mesh(dp=4, cp=2, tp=8, pp=2), Coords(dp=3, cp=1, tp=7))
    with pytest.raises(MeshMismatchError, match="cp rank 2 is not in 0 to 1"):
        from_parallel_state(state(dp=(3, 4), cp=(2, 2), tp=(7, 8), pp=(0, 2)))


def test_a_real_device_mesh_of_one_process(tmp_path):
    dist = pytest.importorskip("torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        assert resolve(init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))) == (Mesh(), Coords())
        assert resolve(None) == (Mesh(dp=1), Coords())
    finally:
        dist.destroy_process_group()
