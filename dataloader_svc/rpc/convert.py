"""Our records <-> what crosses the wire. The only file that knows both."""

from __future__ import annotations

import numpy as np

from dataloader_client._pb import plan_pb2
from dataloader_client.wire import Frame
from dataloader_svc.sample import BadRow, BlockId, Incident, Listing, ProbeColumns, RowRef

_PROBE_DTYPES = {
    "tokens": np.int32,
    "patches": np.int32,
    "frames": np.int32,
    "num_bytes": np.int64,
    "media_offsets": np.int32,
    "media_start": np.int32,
    "media_tokens": np.int32,
    "media_patches": np.int32,
    "media_frames": np.int32,
}


def listing_message(listing: Listing) -> plan_pb2.Listing:
    """For the wire."""
    return plan_pb2.Listing(shards=listing.shards, digest=listing.digest)


def listing_of(message: plan_pb2.Listing) -> Listing:
    """The inverse."""
    return Listing(message.shards, message.digest)


def probe_to_frame(probe: ProbeColumns) -> Frame:
    """Columns as tensors by name; block, start and the bad rows as meta."""
    arrays = {name: getattr(probe, name) for name in _PROBE_DTYPES}
    bad = [[row.position, row.row.shard, row.row.row, row.reason, row.detail] for row in probe.bad]
    meta = {
        "source": probe.block.source,
        "epoch": probe.block.epoch,
        "block": probe.block.block,
        "start": probe.start,
        "bad": bad,
        "incidents": [[row.position, *row.row, row.kind, row.detail] for row in probe.incidents],
    }
    return Frame(arrays, meta)


def probe_from_frame(frame: Frame) -> ProbeColumns:
    """The inverse; arrays keep pointing into the frame's buffer."""
    meta = frame.meta
    columns = {name: frame.arrays[name].astype(dtype, copy=False) for name, dtype in _PROBE_DTYPES.items()}
    bad = tuple(
        BadRow(position, RowRef(shard, row), reason, detail)
        for position, shard, row, reason, detail in meta["bad"]
    )
    incidents = tuple(
        Incident(position, RowRef(shard, row), kind, detail)
        for position, shard, row, kind, detail in meta["incidents"]
    )
    block = BlockId(meta["source"], meta["epoch"], meta["block"])
    return ProbeColumns(block=block, start=meta["start"], bad=bad, incidents=incidents, **columns)
