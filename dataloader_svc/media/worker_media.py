"""What runs in a worker process for media: probe and decode (of sound: features), by the reader of the kind.

Called from `worker_reader.py` through the pool. To have another kind decoded in workers, name in READERS the
function that makes its reader.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from dataloader_svc.media.base import Prober
from dataloader_svc.media.worker_wire import Answer

READERS = {
    "video": "dataloader_svc.media.video:reader_of",
    "audio": "dataloader_svc.media.audio:reader_of",
}
"""Kind -> `module:function`; the function gets the settings, a mapping that JSON holds, and returns a
MediaReader, of audio a SoundReader. Imported in the worker alone: the loader takes no decoder into its
memory."""


def probe(arguments: dict[str, Any], payload: bytes) -> Answer:
    """`Prober.probe`: the fields of MediaProbe."""
    reader, data = _reader_and_data(arguments, payload)
    return Answer(dataclasses.asdict(reader.probe(data)))


def decode(arguments: dict[str, Any], payload: bytes) -> Answer:
    """`MediaReader.decode`: one array."""
    reader, data = _reader_and_data(arguments, payload)
    height, width = arguments["size_hw"]
    return Answer(None, [reader.decode(data, (height, width))])


def features(arguments: dict[str, Any], payload: bytes) -> Answer:
    """`SoundReader.features`: one array."""
    reader, data = _reader_and_data(arguments, payload)
    return Answer(None, [reader.features(data, [(first, count) for first, count in arguments["stretches"]])])


def _reader_and_data(arguments: dict[str, Any], payload: bytes) -> tuple[Any, bytes]:
    reader = _reader(arguments["kind"], json.dumps(arguments["settings"], sort_keys=True))
    return reader, arguments.get("path", payload)


@functools.cache
def _reader(kind: str, settings: str) -> Prober:
    make: Callable[[Mapping[str, Any]], Prober] = pkgutil.resolve_name(READERS[kind])
    return make(json.loads(settings))
