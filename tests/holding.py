"""A trainer in a process of its own that holds what it has read, and what a constructor says of it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from dataloader_client import methods
from dataloader_client._pb import common_pb2, constructor_service_pb2
from dataloader_client.credentials import Credentials
from dataloader_client.transport import channel_options
from real_job import STOP_S, environment

TRAINER = """
import sys
from dataloader_client import Coords, DataServiceLoader, Mesh

address, dp, rank, steps = sys.argv[1], *map(int, sys.argv[2:])
loader = DataServiceLoader(address, mesh=Mesh(dp=dp), coords=Coords(dp=rank))
held = []
for batch in loader:
    held.append(batch)
    if batch.is_last_microbatch and batch.step + 1 == steps:
        break
print("holds", len(held), flush=True)
sys.stdin.readline()
for batch in loader:
    print("read", batch.step, flush=True)
    break
"""


@contextlib.contextmanager
def trainer(address: str, *, dp: int = 1, rank: int = 0, steps: int = 6) -> Iterator[subprocess.Popen[str]]:
    """A process that has read some steps and holds all of their batches."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, address, *map(str, (dp, rank, steps))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline().startswith("holds")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


def status(address: str) -> constructor_service_pb2.ConstructorStatus:
    with Credentials().channel(address, channel_options(address)) as channel:
        call = channel.unary_unary(
            methods.CONSTRUCTOR_STATUS.path,
            request_serializer=common_pb2.Empty.SerializeToString,
            response_deserializer=constructor_service_pb2.ConstructorStatus.FromString,
        )
        found: constructor_service_pb2.ConstructorStatus = call(
            common_pb2.Empty(), timeout=STOP_S, metadata=Credentials().metadata("")
        )
        return found
