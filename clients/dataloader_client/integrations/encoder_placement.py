"""Embeddings of media, encoded where the service has placed the work (`strategy.encoder_placement`).

    group = encoder_group(loader.mesh)  # once; None where cp, tp and pp are 1
    embeddings = embed(vision, batch, "image", group=group)
    tokens = tokens.index_copy(0, batch.image_position, embeddings)

With `encoder_placement: dispatch` each rank gets the pixels of what it encodes, no others, and the embeddings
go in one all-to-all to the ranks that have the tokens. With `own` each rank encodes what it has tokens of,
and nothing is sent: the same lines serve both, with the same loss and gradients. Needs torch, and for
dispatch a process group that knows all-to-all (NCCL, Gloo). `encoder_dispatch.py` is
for services without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist

from dataloader_client.batch import Batch, send_fields
from dataloader_client.integrations.row_exchange import exchange
from dataloader_client.mesh import Coords, Mesh

Kind = Literal["image", "video", "audio"]
Encoder = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(patches (P, F), grids int64 (I, 3)), or of sound (mel frames (M, bins), lengths int64 (C,)) -> embeddings
(E, width): a row for each token, medium after medium."""

_INPUTS = {
    "image": ("pixel_values", "image_grid_thw"),
    "video": ("pixel_values_videos", "video_grid_thw"),
    "audio": ("audio_features", "audio_lengths"),
}


def embed(
    encoder: Encoder,
    batch: Batch,
    kind: Kind = "image",
    *,
    merge: int = 2,
    frames_per_token: int = 4,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """(K, width): the embedding of each placeholder token of the kind, as `{kind}_position` has them.

    encoder   is given what this rank encodes; where that is nothing, one blank medium of a token, so that an
              encoder that is sharded, or whose gradients are reduced, runs on every rank
    merge, frames_per_token   of the job: patches of a token are the square of the first
    group     with dispatch, all ranks along dp and cp that have this rank's tp and pp, in the order
              dp rank * cp + cp rank: `encoder_group`; None: all ranks

    Call it in each microbatch with `batch.presence[kind]`, on every rank, and let the loss depend on the
    result, also on one of no rows: gradients go back the same way.

    ValueError: the group is not of the ranks that the batch was made for, or the encoder made other rows than
    its media have tokens.
    """
    pixels, grids = (batch[name] for name in _INPUTS[kind])
    index = batch[f"{kind}_index"]
    tokens = len(pixels) // (frames_per_token if kind == "audio" else merge**2)
    if len(grids):
        made = encoder(pixels, grids)
    else:
        made, tokens = _blank(encoder, pixels, grids, kind, merge, frames_per_token), 0
    if made.dim() != 2 or len(made) != tokens:
        raise ValueError(
            f"the encoder made {tuple(made.shape)} of {kind}s with {tokens} tokens on this rank; expected a "
            "row for each. Are merge and frames_per_token those of the job?"
        )
    counts, order = send_fields(kind)
    if counts not in batch:
        return made.index_select(0, index)
    sent, received = batch.numpy[counts], batch.numpy[f"{kind}_receive_counts"]
    ranks = dist.get_world_size(group)
    if len(sent) != ranks:
        raise ValueError(
            f"media of this batch are spread over {len(sent)} ranks, along dp and cp, and the group has "
            f"{ranks}: give group=encoder_group(loader.mesh)"
        )
    going = made.index_select(0, batch[order]) if order in batch else made[: int(sent.sum())]
    return exchange(going, sent, received, group).index_select(0, index)


def _blank(
    encoder: Encoder, pixels: torch.Tensor, grids: torch.Tensor, kind: Kind, merge: int, frames: int
) -> torch.Tensor:
    """(0, width), of a medium of one token."""
    if kind == "audio":
        return encoder(pixels.new_zeros((frames, *pixels.shape[1:])), grids.new_tensor([frames]))[:0]
    return encoder(pixels.new_zeros((merge**2, *pixels.shape[1:])), grids.new_tensor([[1, merge, merge]]))[:0]


def encoder_ranks(mesh: Mesh, *, tp: int = 0, pp: int = 0) -> list[int]:
    """Global ranks, as `Mesh` numbers them, that exchange embeddings: all along dp and cp, in their order."""
    places = (Coords(dp=dp, cp=cp, tp=tp, pp=pp) for dp in range(mesh.dp) for cp in range(mesh.cp))
    return [mesh.rank(place) for place in places]


def encoder_group(mesh: Mesh) -> dist.ProcessGroup | None:
    """This rank's group for `embed`; None where it is that of all ranks. Every rank of the job has to call
    it, with torch's ranks numbered as those of `mesh`.
    """
    found, me = None, dist.get_rank()
    if encoder_ranks(mesh) == list(range(dist.get_world_size())):
        return None
    for pp in range(mesh.pp):
        for tp in range(mesh.tp):
            ranks = encoder_ranks(mesh, tp=tp, pp=pp)
            group = dist.new_group(ranks)
            found = group if me in ranks else found
    return found
