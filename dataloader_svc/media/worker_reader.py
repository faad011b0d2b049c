"""Reader of a kind of medium that is read in a worker process.

Has the methods of the reader that it stands for, a `MediaReader` or a `SoundReader`; what runs in the worker
is `worker_media.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.media import worker_media
from dataloader_svc.media.base import MediaProbe, Stretch
from dataloader_svc.media.workers import WorkerPool

_PROBE = f"{worker_media.__name__}:{worker_media.probe.__name__}"
_DECODE = f"{worker_media.__name__}:{worker_media.decode.__name__}"
_FEATURES = f"{worker_media.__name__}:{worker_media.features.__name__}"


@dataclass(frozen=True, slots=True)
class WorkerReader:
    """Reads media of a kind by `pool`, with the settings that `worker_media.READERS` says.

    Raises BadSample, also for what took too long or crashed its process; PeerError where there is no worker.
    """

    pool: WorkerPool
    kind: str
    settings: Mapping[str, Any]

    def probe(self, data: bytes | str) -> MediaProbe:
        found = self.pool.call(_PROBE, *self._about(data)).value
        return MediaProbe(**{**found, "timestamps": tuple(found["timestamps"])})

    def decode(self, data: bytes | str, size_hw: tuple[int, int]) -> NDArray[np.uint8]:
        arguments, payload = self._about(data)
        return self.pool.call(_DECODE, {**arguments, "size_hw": size_hw}, payload).arrays[0]

    def features(self, data: bytes | str, stretches: Sequence[Stretch]) -> NDArray[np.float32]:
        arguments, payload = self._about(data)
        return self.pool.call(_FEATURES, {**arguments, "stretches": list(stretches)}, payload).arrays[0]

    def _about(self, data: bytes | str) -> tuple[dict[str, Any], bytes]:
        about = {"kind": self.kind, "settings": dict(self.settings)}
        return (about, data) if isinstance(data, bytes) else ({**about, "path": data}, b"")
