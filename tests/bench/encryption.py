"""What TLS costs: CPU of both ends for frames over loopback, plain and encrypted, in turn in one process.

    python -m tests.bench.encryption

Prints CPU seconds a GB and their ratio; medians of several rounds. Loopback is the dearest case: there is no
network to wait for.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from dataloader_client import TLS, methods
from dataloader_client._pb import loader_service_pb2
from dataloader_client.credentials import Credentials
from dataloader_client.wire import Frame
from dataloader_svc.rpc.access import Access, Guard, ServerTls
from dataloader_svc.rpc.servicers import start_server
from dataloader_svc.rpc.stubs import Peer
from tests.certificates import Authority

FRAME = Frame({"pixels": np.random.default_rng(0).integers(0, 256, 64 << 20, np.uint8)})
FRAMES, ROUNDS = 4, 7


class Loader:
    async def fetch(self, _: loader_service_pb2.FetchRequest) -> Frame:
        return FRAME

    describe = probe = release = status = fetch


async def cpu_s(tls: ServerTls | None, credentials: Credentials) -> float:
    """CPU seconds a GB, of both ends."""
    server, address = await start_server(
        {methods.LOADER: Loader()}, "127.0.0.1:0", access=Access(Guard(), tls)
    )
    async with Peer(address, "loader", credentials) as peer:
        request = loader_service_pb2.FetchRequest()
        await peer.fetch(methods.FETCH, request, timeout_s=60)
        began = time.process_time()
        for _ in range(FRAMES):
            await peer.fetch(methods.FETCH, request, timeout_s=60)
        used = time.process_time() - began
    await server.stop(None)
    return used / (FRAMES * FRAME.num_bytes / 1e9)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        issued = authority.issue("service")
        encrypted = ServerTls(issued.certificate, issued.key), Credentials(tls=TLS(ca=authority.pem))
        rounds = []
        for _ in range(ROUNDS):
            rounds.append((asyncio.run(cpu_s(None, Credentials())), asyncio.run(cpu_s(*encrypted))))
    plain, tls = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(tls / plain for plain, tls in rounds)
    print(f"plain {plain:.2f} s/GB, TLS {tls:.2f} s/GB, ratio {ratio:.2f} (median of {ROUNDS})")


if __name__ == "__main__":
    main()
