"""The peers: which environment each needs, and which workloads its file in `loaders/` has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """`module` is a file of `loaders/`; `package` is what its version is asked of."""

    name: str
    module: str
    environment: str
    package: str
    workloads: tuple[str, ...]
    has_service: bool = False
    converts: bool = False
    not_the_same: tuple[str, ...] = ()  # workloads that it can't do with the libraries that all others use


OURS = "dataloader-svc"
PEERS = (
    Peer(
        OURS,
        "ours",
        "project",
        "dataloader-svc",
        ("text", "images", "sources"),
        has_service=True,
        converts=True,
    ),
    Peer("the library alone", "bound", "project", "fastokens", ("text", "images")),
    Peer("torch DataLoader", "torch_loader", "main", "torch", ("text", "images", "sources")),
    Peer("StatefulDataLoader", "stateful", "main", "torchdata", ("text", "images", "sources")),
    Peer("webdataset", "web", "main", "webdataset", ("text", "images"), converts=True),
    Peer("litdata", "lit", "main", "litdata", ("text", "images"), converts=True),
    Peer("mosaicml-streaming", "mds", "streaming", "mosaicml-streaming", ("text", "images"), converts=True),
    Peer("grain", "grain_loader", "main", "grain", ("text", "images"), converts=True),
    Peer("megatron-energon", "energon", "main", "megatron-energon", ("text", "images"), converts=True),
    Peer("SPDL", "spdl_loader", "main", "spdl", ("text", "images")),
    Peer("Ray Data", "ray_data", "main", "ray", ("text", "images"), has_service=True),
    Peer(
        "tf.data service",
        "tf_service",
        "tensorflow",
        "tensorflow-cpu",
        ("text", "images"),
        has_service=True,
        converts=True,
        not_the_same=("images",),
    ),
)


def by_name(name: str) -> Peer:
    """The peer of that name; KeyError names all."""
    for peer in PEERS:
        if name in (peer.name, peer.module):
            return peer
    raise KeyError(f"no peer {name!r}; there are {', '.join(peer.name for peer in PEERS)}")
