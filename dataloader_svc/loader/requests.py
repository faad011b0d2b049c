"""What a loader is asked for, out of the messages: blocks by name, and pieces by the block they are in."""

from __future__ import annotations

from dataloader_client._pb import loader_service_pb2, plan_pb2
from dataloader_svc.errors import ConfigError
from dataloader_svc.loader.decode import PieceRange
from dataloader_svc.sample import BlockId


def block_id(request: loader_service_pb2.BlockRequest) -> BlockId:
    """The block that it names."""
    return BlockId(request.source, request.epoch, request.block)


def pieces_asked(request: loader_service_pb2.FetchRequest) -> dict[BlockId, list[tuple[int, PieceRange]]]:
    """Pieces with their number in the request, by block. Raises ConfigError for columns that don't fit."""
    columns = (
        request.source,
        request.epoch,
        request.block,
        request.position,
        request.start,
        request.length,
    )
    if len({len(column) for column in columns}) != 1 or any(
        s >= len(request.sources) for s in request.source
    ):
        raise ConfigError("fetch: columns of different lengths, or a source index beyond the list")
    asked: dict[BlockId, list[tuple[int, PieceRange]]] = {}
    for number, (source, epoch, block, *piece) in enumerate(zip(*columns, strict=True)):
        asked.setdefault(BlockId(request.sources[source], epoch, block), []).append(
            (number, PieceRange(*piece))
        )
    return asked


def listings_of(request: loader_service_pb2.FetchRequest) -> dict[tuple[str, int], plan_pb2.Listing]:
    """(source, epoch) -> what that epoch is made of. ConfigError: a source that is not in the list."""
    if any(each.source >= len(request.sources) for each in request.listings):
        raise ConfigError("fetch: a listing's source index is beyond the list")
    return {(request.sources[each.source], each.epoch): each.listing for each in request.listings}
