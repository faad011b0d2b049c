"""How fast batches get from a constructor to its trainers, beside what the machine can do at most.

    python tests/bench/transport.py [--mib 1 16 64] [--rounds 5]

A server process writes a batch into memory as a constructor does, each time anew, and hands it to client
processes over the finished path: `Segments`, `Lender` and the role's server at one end, `Transport` at the
other, two reads ahead. The client touches every page of what it gets. Beside it, in the same rounds:

    memcpy      the same bytes copied into a warm buffer: what writing the batch costs alone
    gRPC raw    ready messages of 1 MiB, received and thrown away: no building, no copy, no frame
    2 channels  the same, half of it over each of two connections

GB/s is of all clients together; CPU seconds are of all processes (user and system), a GB. Medians of rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace

import grpc
import numpy as np
import psutil

from dataloader_client._pb import common_pb2, constructor_service_pb2
from dataloader_client.transport import Transport, channel_options
from dataloader_client.wire import CHUNK, Frame
from dataloader_svc.constructor.lending import Lender
from dataloader_svc.constructor.segments import PAGE, Arena, Segments
from dataloader_svc.rpc.servicers import start_server

MIB = 2**20
AHEAD = 2
RAW = "/bench/Raw"


class Batches:
    """The constructor's end. A read's `step` is the size; `session` numbers it, and the ranks that name the
    same number get the same batch, which is built for the first of them.
    """

    def __init__(self) -> None:
        self.segments = Segments(2**31)
        self.lender = Lender.open(self.segments)
        self._source = np.random.default_rng(0).integers(0, 255, 64 * MIB, np.uint8)
        self._built: dict[tuple[int, int], asyncio.Task[Arena]] = {}

    def _build(self, size: int) -> Arena:
        arena = self.segments.arena(0, 1, size + PAGE)
        assert arena is not None
        np.copyto(arena.empty(size, np.uint8), self._source[:size])
        return arena

    async def read(self, request: constructor_service_pb2.ReadRequest) -> Frame:
        size, key = request.step, (request.session, request.coords.dp)
        if key not in self._built:
            self._built[key] = asyncio.create_task(asyncio.to_thread(self._build, size))
        task = self._built[key]
        for old in [old for old in self._built if old[1] == key[1] and old[0] < key[0] - AHEAD]:
            del self._built[old]
        root = (await asyncio.shield(task)).root
        frame = Frame({"0/payload": root[:size]}, {}, socket=self.lender.name)
        lent = bool(request.attachment) and self.lender.lend(request.attachment, request.lease, root)
        return replace(frame, shared=root) if lent else frame

    async def join(self, _: object) -> common_pb2.Empty:
        return common_pb2.Empty()

    leave = report = status = join


async def _raw(request: bytes, _: object) -> AsyncIterator[bytes]:
    message = bytes(CHUNK)
    for _number in range(int(request)):
        yield message


async def serve() -> None:
    """Print both addresses, serve until stdin ends."""
    server, address = await start_server({"ConstructorService": Batches()}, "127.0.0.1:0")
    raw = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(_raw)
    raw.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Raw": handler}),))
    port = raw.add_insecure_port("127.0.0.1:0")
    await raw.start()
    print(json.dumps([address, f"127.0.0.1:{port}"]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(server.stop(None), raw.stop(None))


# ---- a client process


def read_steps(address: str, size: int, count: int, rank: int, *, shared: bool) -> Iterator[None]:
    """Read `count` batches of `size` bytes, after a few that are not counted: yields after those."""
    transport = Transport(address, timeout_s=60, shared=shared)
    ahead = deque[object]()
    warm = 12  # by then as many segments are there as are ever in use at once
    for number in range(warm + count + AHEAD):
        if number < warm + count:
            request = constructor_service_pb2.ReadRequest(
                session=number, step=size, coords=common_pb2.Coords(dp=rank)
            )
            ahead.append(transport.start_read(request))
        if len(ahead) <= AHEAD and number < warm + count:
            continue
        frame = transport.finish_read(ahead.popleft())  # type: ignore[arg-type]
        array = frame.arrays["0/payload"]
        assert array.nbytes == size
        assert number < warm or (frame.shared is not None) == shared
        int(array[::PAGE].sum())
        if number == warm:
            yield
    transport.close()


def read_raw(address: str, size: int, count: int, *, channels: int) -> Iterator[None]:
    """The same of ready messages, over so many channels at once, one thread each."""
    opened = [grpc.insecure_channel(address, options=channel_options(address)) for _ in range(channels)]

    def read(channel: grpc.Channel, turns: int) -> None:
        call = channel.unary_stream(RAW)
        for _ in range(turns):
            for message in call(str(size // CHUNK // channels).encode()):
                assert len(message) == CHUNK

    for turns in (2, count):
        if turns == count:
            yield
        threads = [threading.Thread(target=read, args=(channel, turns)) for channel in opened]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for channel in opened:
        channel.close()


def copy(size: int, count: int) -> Iterator[None]:
    """Copies into four buffers in turn, as a window of batches is."""
    source, targets = np.ones(size, np.uint8), [np.ones(size, np.uint8) for _ in range(4)]
    yield
    for number in range(count):
        np.copyto(targets[number % 4], source)


def client(way: str, address: str, raw: str, size: int, count: int, rank: int) -> None:
    """Get ready, wait for a line, do it, print seconds and CPU seconds."""
    ways: dict[str, Callable[[], Iterator[None]]] = {
        "shared": lambda: read_steps(address, size, count, rank, shared=True),
        "gRPC": lambda: read_steps(address, size, count, rank, shared=False),
        "gRPC raw": lambda: read_raw(raw, size, count, channels=1),
        "2 channels": lambda: read_raw(raw, size, count, channels=2),
        "memcpy": lambda: copy(size, count),
    }
    work = ways[way]()
    next(work)
    print("ready", flush=True)
    sys.stdin.readline()
    began, cpu = time.perf_counter(), time.process_time()
    next(work, None)
    print(json.dumps([time.perf_counter() - began, time.process_time() - cpu]), flush=True)


# ---- the measurement


@dataclass(frozen=True, slots=True)
class Row:
    """A way, of so many clients; with `one_copy` they are tp peers that need the same batch."""

    way: str
    mib: int
    ranks: int = 1
    one_copy: bool = False

    @property
    def count(self) -> int:
        return max(24, 512 // self.mib // self.ranks)

    def __str__(self) -> str:
        ranks = (
            ""
            if self.ranks == 1
            else f", {self.ranks} ranks of {'one' if self.one_copy else 'each its own'} batch"
        )
        return f"{self.way:10} {self.mib:3} MiB{ranks}"


def measure(row: Row, server: psutil.Process, addresses: list[str]) -> tuple[float, float]:
    """(GB/s, CPU seconds a GB)."""
    arguments = [row.way, *addresses, str(row.mib * MIB), str(row.count)]
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "--client", *arguments, str(0 if row.one_copy else rank)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(row.ranks)
        ]
        for process in clients:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        before = sum(server.cpu_times()[:2])
        for process in clients:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [json.loads(process.stdout.readline()) for process in clients if process.stdout is not None]
        cpu = sum(server.cpu_times()[:2]) - before + sum(used for _, used in found)
    gigabytes = row.ranks * row.count * row.mib * MIB / 1e9
    return gigabytes / max(seconds for seconds, _ in found), cpu / gigabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
        return
    if args.client:
        way, address, raw, *numbers = args.client
        client(way, address, raw, *map(int, numbers))
        return
    rows = [
        Row(way, mib) for mib in args.mib for way in ("memcpy", "shared", "gRPC raw", "2 channels", "gRPC")
    ]
    rows += [Row(way, 16, 4, one) for way in ("shared", "gRPC") for one in (True, False)]
    found: dict[Row, list[tuple[float, float]]] = {row: [] for row in rows}
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        for _ in range(args.rounds):
            for row in rows:
                found[row].append(measure(row, psutil.Process(process.pid), addresses))
        process.communicate("")
    for row, values in found.items():
        speed, cpu = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"{row!s:50} {speed:6.2f} GB/s {cpu:6.2f} CPU s/GB")


if __name__ == "__main__":
    main()
