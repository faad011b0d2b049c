"""A worker process: runs one operation after the other for the loader that started it, and never outlives it.

Started by `worker_process.py` with `python -m`, never imported. An operation is a function

    def operation(arguments: dict[str, Any], payload: bytes) -> Answer

named `package.module:function` in the request, imported when it is first asked for. What it raises becomes a
bad sample: BadSample as it is, whatever else as `decode_failed`, with its traceback in the loader's log. What
it does to this process (spin, crash, take memory) is the loader's to see: see `workers.py`.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import importlib
import os
import pkgutil
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.worker_wire import Answer, Channel, Closed, described

Operation = Callable[[dict[str, Any], bytes], Answer]
_MOST_REQUEST = 2**40  # the loader is trusted: it has the bytes already


def die_with(lifeline: int) -> None:
    """Have the kernel end this process when the pipe `lifeline` is closed at its other end.

    That is: when the loader dies, however it dies, whatever this process is at. A watching thread couldn't
    run while native code holds the interpreter's lock, and the signal of PR_SET_PDEATHSIG means the death of
    the *thread* that started this process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it was closed before the kernel was asked
        os._exit(1)


def _confine(memory: int) -> None:
    os.dup2(2, 1)  # what a library prints is no message, and belongs into the log
    faulthandler.enable()  # a crash says where, and is still one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the loader's to hear
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _answer(
    name: str, arguments: dict[str, Any], payload: bytes, memory: int
) -> tuple[object, Sequence[Any]]:
    try:
        operation: Operation = pkgutil.resolve_name(name)
        answer = operation(arguments, payload)
    except BadSample as bad:
        return {"bad": [bad.reason.value, bad.detail]}, ()
    except MemoryError:
        detail = f"needs more memory than loader.worker_memory ({memory} bytes)"
        return {"bad": [Reason.DECODE_FAILED.value, detail]}, ()
    except Exception as error:  # told, not hidden: a stranger's bytes must not end a job
        traceback.print_exc()
        detail = f"{name} raised {type(error).__name__}: {error}"
        return {"bad": [Reason.DECODE_FAILED.value, detail]}, ()
    return {"value": answer.value, "arrays": described(answer.arrays)}, answer.arrays


def main() -> None:
    """Numbers of the lifeline and the socket, bytes of memory, and modules to import before saying hello."""
    lifeline, number, memory = map(int, sys.argv[1:4])
    die_with(lifeline)
    _confine(memory)
    for module in sys.argv[4:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    channel = Channel(socket.socket(fileno=number))
    try:
        channel.send("ready")
        while True:
            (name, arguments), payload = channel.receive_bytes(_MOST_REQUEST)
            value, arrays = _answer(name, arguments, payload, memory)
            del payload
            channel.send(value, arrays)
            del value, arrays
    except Closed:
        sys.exit(0)


if __name__ == "__main__":
    main()
