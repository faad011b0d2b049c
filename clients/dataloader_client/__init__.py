"""What a trainer imports. Needs grpcio, protobuf and numpy; torch only when tensors are asked for."""

from dataloader_client.batch import Batch, Manifest, Span
from dataloader_client.control import MixtureChange
from dataloader_client.credentials import TLS
from dataloader_client.errors import (
    AccessDeniedError,
    DataServiceError,
    DataStoppedError,
    LocalServiceError,
    MeshMismatchError,
    MixtureError,
    ServiceUnavailableError,
    SessionSupersededError,
    StateMismatchError,
    VersionMismatchError,
    WireError,
)
from dataloader_client.loader import DataServiceLoader, LoaderStats
from dataloader_client.local import LocalService
from dataloader_client.mesh import Coords, Mesh

__all__ = [
    "TLS",
    "AccessDeniedError",
    "Batch",
    "Coords",
    "DataServiceError",
    "DataServiceLoader",
    "DataStoppedError",
    "LoaderStats",
    "LocalService",
    "LocalServiceError",
    "Manifest",
    "Mesh",
    "MeshMismatchError",
    "MixtureChange",
    "MixtureError",
    "ServiceUnavailableError",
    "SessionSupersededError",
    "Span",
    "StateMismatchError",
    "VersionMismatchError",
    "WireError",
]
