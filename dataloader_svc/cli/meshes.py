"""`dp=2,cp=2` on the command line, and clients for all ranks of such a mesh in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product

import click

from dataloader_client import Batch, Coords, DataServiceLoader, Mesh
from dataloader_client.mesh import AXES


class MeshType(click.ParamType[Mesh]):
    """A click parameter type: text such as `dp=2,cp=2` to a Mesh."""

    name = "mesh"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Mesh:
        """Parse, or fail with what is allowed."""
        if isinstance(value, Mesh):
            return value
        sizes: dict[str, int] = {}
        for part in str(value).split(","):
            axis, _, size = part.partition("=")
            if axis not in AXES or axis in sizes or not size.isdigit() or int(size) < 1:
                self.fail(f"{value!r}: expected axes such as dp=2,cp=2; axes: {', '.join(AXES)}", param, ctx)
            sizes[axis] = int(size)
        return Mesh(**sizes)


def short(mesh: Mesh) -> str:
    """`dp=2,cp=2`: axes of size one are left out, but never all."""
    axes = [f"{axis}={getattr(mesh, axis)}" for axis in ("dp", "cp", "tp", "pp") if getattr(mesh, axis) > 1]
    return ",".join(axes) or "dp=1"


Step = dict[Coords, list[Batch]]
"""What each rank got in one step: its microbatches."""


class Ranks:
    """A client for each rank."""

    def __init__(self, loaders: dict[Coords, DataServiceLoader]) -> None:
        self.loaders = loaders
        self._pool = ThreadPoolExecutor(len(loaders), "rank")

    def steps(self, count: int) -> Iterator[Step]:
        """Up to `count` steps, all ranks reading at once; fewer where the data ends."""
        iterators = {coords: _by_step(loader) for coords, loader in self.loaders.items()}
        for _ in range(count):
            reads = {c: self._pool.submit(next, iterator, None) for c, iterator in iterators.items()}
            step: Step = {}
            for coords, read in reads.items():
                batches = read.result()
                if batches is not None:
                    step[coords] = batches
            if not step:
                return
            yield step

    def close(self) -> None:
        """Close all clients."""
        for loader in self.loaders.values():
            loader.close()
        self._pool.shutdown()


def _by_step(loader: DataServiceLoader) -> Iterator[list[Batch]]:
    held: list[Batch] = []
    for batch in loader:
        held.append(batch)
        if batch.is_last_microbatch:
            yield held
            held = []


@contextmanager
def ranks(
    address: str, mesh: Mesh, *, token: str | None, prefetch: int = 2, peers: bool = False
) -> Iterator[Ranks]:
    """Clients of the data- and context-parallel ranks of a job of this process, joined; closed at the end.

    peers   those of tp and pp too, which have the same samples
    """
    tp, pp = (mesh.tp, mesh.pp) if peers else (1, 1)
    places: Sequence[Coords] = [
        Coords(dp=dp, cp=cp, tp=tp, pp=pp)
        for dp, cp, tp, pp in product(*map(range, (mesh.dp, mesh.cp, tp, pp)))
    ]
    with ExitStack() as stack:
        loaders = {}
        for coords in places:
            loader = DataServiceLoader(
                address, mesh=mesh, coords=coords, prefetch=prefetch, token=token, tls=False
            )
            loaders[coords] = stack.enter_context(loader)
        group = Ranks(loaders)
        stack.callback(group.close)
        yield group
