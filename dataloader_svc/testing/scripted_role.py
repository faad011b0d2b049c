"""A role that does what a test tells it, to examine engines with: `ROLE INDEX ACT [MORE]`.

    serve             ready at "host:INDEX", until asked to stop; says so when it stops
    deaths FILE N     dies the first N lives before it is ready (FILE counts them), then serves
    exit CODE         ends before it is ready, after writing 30 numbered lines
    config-error      ends by a ConfigError
    store-error       ends by a StoreError
    stubborn          ready, and never ends by itself, nor does the process that it starts
    slow-start        asks nothing and is never ready, until asked to stop
    shadow            ready, until promoted; then serves as the role whose place it takes
    babble            writes nonsense to the engine before it is ready

A line `stopped NAME` goes to the file named by SCRIPTED_ROLE_STOPS, where there is one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from dataloader_svc.engine.child import CONTROL_FD, ChildContext, run_child
from dataloader_svc.errors import ConfigError, StoreError

IMMORTAL = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('grandchild', flush=True)"


async def play(context: ChildContext, name: str, act: str, more: list[str]) -> None:
    """Do `act`; see the module's docstring."""
    if act == "exit":
        print("\n".join(f"line {number}" for number in range(30)), flush=True)
        sys.exit(int(more[0]))
    if act == "config-error":
        raise ConfigError("sources.web: no such path: nowhere/*.parquet")
    if act == "store-error":
        raise StoreError("state.db: it is damaged")
    if act == "deaths":
        count_deaths(Path(more[0]), int(more[1]))
    if act == "stubborn":
        await defy(context, name)
    if act != "slow-start":
        context.ready(f"host:{name.rpartition('-')[2]}")
    if act == "shadow":
        name = await promoted(context, name)
    print(f"{name} runs in process {os.getpid()}", flush=True)
    await context.stop_requested.wait()
    print(f"{name} was asked to stop", flush=True)
    note_stop(name)


async def promoted(context: ChildContext, name: str) -> str:
    """Stand by; the name that it has from then on."""
    waits = [asyncio.create_task(event.wait()) for event in (context.promoted, context.stop_requested)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if context.index is None:
        return name
    context.ready(f"host:{context.index}")
    return f"{name.partition('-')[0]}-{context.index}"


def note_stop(name: str) -> None:
    """Add a line to the file that tells the order of stops."""
    stops = os.environ.get("SCRIPTED_ROLE_STOPS")
    if stops:
        with Path(stops).open("a") as file:
            file.write(f"stopped {name}\n")


def count_deaths(file: Path, wanted: int) -> None:
    """End the process, but not more than `wanted` times."""
    deaths = int(file.read_text()) if file.exists() else 0
    if deaths < wanted:
        file.write_text(str(deaths + 1))
        sys.exit(f"death {deaths + 1}")


async def defy(context: ChildContext, name: str) -> None:
    """Become ready once a child of our own runs as well, and ignore every request to stop."""
    child = subprocess.Popen(  # noqa: ASYNC220 - a test's role may block its loop
        [sys.executable, "-c", IMMORTAL + "; signal.pause()"], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context.ready(f"grandchild:{child.pid}")
    print(f"{name} defies", flush=True)
    await asyncio.Event().wait()


def main(argv: list[str]) -> int:
    """Run as `python -m dataloader_svc.testing.scripted_role ROLE INDEX ACT [MORE]`."""
    role, index, act, *more = argv
    if act == "babble":
        descriptor = int(os.environ[CONTROL_FD])
        os.write(descriptor, b'nonsense\n[1]\n{"ready"\n\xff\n{"other": 1}\n')
    return run_child(lambda context: play(context, f"{role}-{index}", act, more))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
