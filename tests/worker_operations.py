"""Operations for decode workers, most of them ill-behaved: imported by worker processes, by this name.

`announce`, where an operation takes it, is a named pipe: a test that reads it knows that the operation runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.worker_wire import Answer

FOLDER = str(Path(__file__).parent)
_kept: list[np.ndarray] = []


def _announce(arguments: dict[str, Any]) -> None:
    if "announce" in arguments:
        Path(arguments["announce"]).write_text(f"{os.getpid()}\n")


def echo(arguments: dict[str, Any], payload: bytes) -> Answer:
    """What it was given, also the other way round and as nothing, and who answers."""
    data = np.frombuffer(payload, np.uint8)
    arrays = [data, data[::-1], np.empty((0, 3), np.float32)]
    return Answer({"arguments": arguments, "pid": os.getpid()}, arrays)


def spin(arguments: dict[str, Any], payload: bytes) -> Answer:
    """For ever, and no other thread of the process gets the interpreter's lock: a regex that backtracks."""
    _announce(arguments)
    re.match(r"(a+)+$", "a" * 64 + "b")
    raise AssertionError("the universe has ended")


def sleep(arguments: dict[str, Any], payload: bytes) -> Answer:
    """For ever."""
    _announce(arguments)
    signal.pause()
    raise AssertionError("no signal is handled")


def kill_itself(arguments: dict[str, Any], payload: bytes) -> Answer:
    """By the signal named; `first_only`: a file that is made the first time, and spares it the second."""
    if "first_only" in arguments:
        with contextlib.suppress(FileExistsError):
            Path(arguments["first_only"]).touch(exist_ok=False)
            os.kill(os.getpid(), signal.Signals[arguments["signal"]])
        return Answer({"pid": os.getpid()})
    os.kill(os.getpid(), signal.Signals[arguments["signal"]])
    return Answer()


def leave(arguments: dict[str, Any], payload: bytes) -> Answer:
    """End as a library would that calls exit."""
    os._exit(arguments["code"])


def garble(arguments: dict[str, Any], payload: bytes) -> Answer:
    """Write `payload` where answers belong."""
    os.write(int(sys.argv[2]), payload)
    return Answer()


def message(text: bytes, payload: bytes = b"", *, size: int | None = None) -> bytes:
    """As the protocol has it, for `garble`; `size` lies about the payload."""
    return struct.pack("<4sIQ", b"dlw1", len(text), len(payload) if size is None else size) + text + payload


def chatter(arguments: dict[str, Any], payload: bytes) -> Answer:
    """Print, by Python and by the file's number, and read what isn't there."""
    print("chatter of a library", flush=True)
    os.write(1, b"chatter of native code\n" * 1000)
    return Answer(sys.stdin.read())


def take_memory(arguments: dict[str, Any], payload: bytes) -> Answer:
    """`size` bytes, written to, and kept where asked."""
    taken = np.ones(arguments["size"], np.uint8)
    if arguments.get("keep"):
        _kept.append(taken)
    return Answer({"pid": os.getpid()})


def fail(arguments: dict[str, Any], payload: bytes) -> Answer:
    """By an exception: of ours, or of anybody's."""
    if "reason" in arguments:
        raise BadSample(Reason(arguments["reason"]), "as was asked")
    raise ZeroDivisionError("as was asked")


def objects(arguments: dict[str, Any], payload: bytes) -> Answer:
    """Arrays whose bytes are pointers."""
    return Answer(None, [np.array([object()])])
