"""What the planner is asked and answers, between protobuf and its own records. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import dataloader_svc
from dataloader_client._pb import common_pb2, plan_pb2
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import MeshError
from dataloader_svc.planner.attendance import Coords
from dataloader_svc.planner.place import MeshSize, Placement, check_mesh, set_microbatches
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.session import Session
from dataloader_svc.planner.skip import ahead
from dataloader_svc.planner.state import State
from dataloader_svc.rpc.convert import listing_message
from dataloader_svc.sample import BlockId

_AXES = ("dp", "cp", "tp", "pp")

MOST_RANKS = 1 << 20
"""Of a mesh. Constructors keep account of each."""


def asked_mesh(config: Config, request: plan_pb2.JoinRequest) -> MeshSize:
    """The mesh of a rank that joins: its own, else the configured one.

    MeshError: the batch doesn't divide over it, the rank has no place in it, or there is no such mesh.
    """
    asked = request.mesh if request.HasField("mesh") else config.mesh
    mesh = MeshSize(*(max(getattr(asked, axis), 1) for axis in _AXES))
    if math.prod(getattr(mesh, axis) for axis in _AXES) > MOST_RANKS:
        raise MeshError(f"mesh {mesh} has more than {MOST_RANKS} ranks: check its sizes")
    check_mesh(config, mesh)
    for axis in _AXES:
        place, size = getattr(request.coords, axis), getattr(mesh, axis)
        if place >= size:
            raise MeshError(f"{axis} rank {place} is not in 0 to {size - 1} of mesh {mesh}")
    return mesh


def coords_of(request: plan_pb2.JoinRequest) -> Coords:
    """Of the rank that joins."""
    return Coords(*(getattr(request.coords, axis) for axis in _AXES))


def join_response(
    config: Config, config_hash: str, sources: Sequence[str], session: Session, start: State
) -> plan_pb2.JoinResponse:
    """What a rank needs to know to read `session` from `start` on."""
    return plan_pb2.JoinResponse(
        session=session.number,
        start_step=session.start_step,
        mesh=mesh_message(session.mesh),
        job=config.job,
        service_version=dataloader_svc.__version__,
        config_digest=config_hash,
        sources=sources,
        num_microbatches=set_microbatches(config, session.mesh),
        sequence_length=config.sequence_length,
        layout=config.layout,
        patch=config.images.patch,
        merge=config.images.merge,
        state_json=start.to_json(),
        skip=(
            plan_pb2.SkippedSteps(first=skip.first, stop=skip.stop, reason=skip.reason)
            for skip in ahead(start.skips, start.step)
        ),
        wants_losses=config.mixture.adaptive is not None,
        encoder_placement=config.strategy.encoder_placement,
    )


def blocks_by_piece(plan: Plan) -> list[BlockId]:
    """The block that each piece lies in."""
    pieces = plan.pieces
    rows = zip(pieces.source.tolist(), pieces.epoch.tolist(), pieces.block.tolist(), strict=True)
    return [BlockId(plan.sources[source], epoch, block) for source, epoch, block in rows]


def placed_plan(
    plan: Plan,
    session: Session,
    placement: Placement,
    *,
    loaders: Sequence[str],
    piece_loader: Sequence[int],
    masked: Sequence[int],
    seconds: tuple[float, float],
) -> plan_pb2.PlacedPlan:
    """A step as constructors get it.

    loaders, piece_loader  addresses, and for each piece which of them to ask first
    masked                 pieces that stay silent
    seconds                that planning took, and that it waited for probes
    """
    return plan_pb2.PlacedPlan(
        record=plan.to_message(),
        session=session.number,
        step=plan.step,
        dp_rank=placement.dp_rank.tolist(),
        microbatch=placement.microbatch.tolist(),
        loader=loaders,
        piece_loader=piece_loader,
        metrics=dict(placement.metrics),
        masked=masked,
        encoder_rank=() if placement.encoder_rank is None else placement.encoder_rank.tolist(),
        generation=session.generation,
        listings=_listings(plan),
        plan_seconds=seconds[0],
        probe_wait_seconds=seconds[1],
    )


def _listings(plan: Plan) -> list[plan_pb2.EpochListing]:
    """The shards of each epoch that pieces are of."""
    sources = plan.state.sources
    epochs = sorted(set(zip(plan.pieces.source.tolist(), plan.pieces.epoch.tolist(), strict=True)))
    return [
        plan_pb2.EpochListing(
            source=number,
            epoch=epoch,
            listing=listing_message(sources[plan.sources[number]].listing(epoch)),
        )
        for number, epoch in epochs
    ]


def mesh_message(mesh: MeshSize) -> common_pb2.Mesh:
    """For the wire."""
    return common_pb2.Mesh(dp=mesh.dp, cp=mesh.cp, tp=mesh.tp, pp=mesh.pp)
