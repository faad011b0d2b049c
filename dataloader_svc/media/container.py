"""A stranger's file opened by FFmpeg (PyAV), and FFmpeg's errors as bad samples: for sound and video alike.

Nothing of it is read here. `video_index.py` and `sound.py` do.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
from av.container import InputContainer

from dataloader_svc.errors import BadSample, Reason

# First bytes of containers: where these are followed by nonsense, the file is cut or damaged.
_ISO_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
_OTHER_CONTAINERS = (b"\x1aE\xdf\xa3", b"OggS", b"FLV", b"\x30\x26\xb2\x75", b"\0\0\x01\xba", b"fLaC", b"ID3")
_RIFF_KINDS = (b"AVI ", b"WAVE")


@contextmanager
def open_container(source: bytes | str, formats: str, kind: str) -> Iterator[InputContainer]:
    """An open container; errors of FFmpeg, inside the block too, are BadSample.

    source   the file's bytes, or its path
    formats  FFmpeg may try these only: others (hls, concat, ...) would open further files and addresses that
             a stranger's bytes name. Paths get the protocol spelled out for the same reason.
    kind     what is looked for, for words: "video"
    """
    try:
        # Metadata is free text in any encoding, and nothing of it is used.
        container = av.open(
            io.BytesIO(source) if isinstance(source, bytes) else f"file:{Path(source).absolute()}",
            mode="r",
            container_options={"format_whitelist": formats, "protocol_whitelist": "file"},
            metadata_errors="ignore",
        )
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise BadSample(Reason.MISSING_FILE, f"{source!r}: {error.strerror}") from error
    except (av.error.FFmpegError, ValueError) as error:
        raise _unopened(source, kind) from error
    with container:
        try:
            yield container
        except (av.error.FFmpegError, ValueError) as error:
            raise BadSample(Reason.DECODE_FAILED, f"{type(error).__name__}: {error}") from error


def _unopened(source: bytes | str, kind: str) -> BadSample:
    if isinstance(source, bytes):
        head, size = source[:16], len(source)
    else:
        with Path(source).open("rb") as file:
            head, size = file.read(16), Path(source).stat().st_size
    if head[4:8] in _ISO_BOXES:
        return BadSample(Reason.TRUNCATED, f"MP4 of {size} bytes without a whole index (moov)")
    if head.startswith(_OTHER_CONTAINERS) or (head[:4] == b"RIFF" and head[8:12] in _RIFF_KINDS):
        return BadSample(Reason.TRUNCATED, f"container of {size} bytes without a whole header")
    return BadSample(Reason.NOT_MEDIA, f"no {kind} container: {size} bytes that begin with {head!r}")
