"""Batches that are mapped: the same as those that are sent, valid while they are held, and given back."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import re
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dataloader_client import DataServiceLoader, Mesh
from dataloader_client import shared as module
from dataloader_client._pb import common_pb2
from dataloader_client.shared import NUMBER, Attachment, SharedMemoryLost, attach
from dataloader_svc.constructor import lending
from dataloader_svc.constructor.lending import Lender
from dataloader_svc.constructor.segments import Segments
from dataloader_svc.testing.scripted_job import JobThread
from dataloader_svc.testing.scripted_roles import Script
from reading import fingerprint, take_step
from real_job import environment, named_segments, new_segments

SCRIPT = Script(num_steps=12)
MIB = 2**20


@pytest.fixture
def service():
    with JobThread(SCRIPT) as service:
        yield service


@pytest.fixture(scope="module")
def sent():
    """Fingerprints of all steps of dp = 1 as they come over gRPC."""
    with JobThread(SCRIPT, constructor={"shared_memory": False}) as service:
        with DataServiceLoader(service.address, mesh=Mesh()) as loader:
            found = [fingerprint(take_step(loader)) for _ in range(SCRIPT.num_steps)]
        assert status(service).lent_total == status(service).shared_limit_bytes == 0
    return found


def status(service):
    constructor = service.job.constructors[0]
    return service.do(constructor.status(common_pb2.Empty()))


def given_back(service, leases=0):
    """Wait until so few leases are left: what was given back may be on its way."""
    segments = service.job.constructors[0]._segments
    release, change = segments.release, threading.Condition()

    def watched(*what):
        release(*what)
        with change:
            change.notify_all()

    segments.release = watched
    with change:
        assert change.wait_for(lambda: segments.lent[1] <= leases, 20), segments.lent
    segments.release = release


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def is_mapped(array) -> bool:
    """Whether it lies in memory that a constructor made."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= address < high:
            return "memfd:dataloader-batch" in line
    return False


def test_steps_are_mapped_and_equal_to_those_sent(service, sent):
    mapped = 0
    with DataServiceLoader(service.address, mesh=Mesh(), prefetch=2) as loader:
        for step in range(SCRIPT.num_steps):
            batches = take_step(loader)
            assert fingerprint(batches) == sent[step]
            arrays = [array for batch in batches for array in batch.numpy.values() if array.nbytes]
            mapped += all(is_mapped(array) for array in arrays)
        # The first answers say where to attach; by then `prefetch` reads and the next are on their way.
        assert mapped >= SCRIPT.num_steps - 3
        assert status(service).lent_total >= mapped
        del batches, arrays
    given_back(service)


@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(cp=2), Mesh(dp=2, pp=2)])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_on_every_mesh_each_rank_gets_what_it_gets_over_grpc(mesh, layout):
    script = Script(num_steps=5, layout=layout)
    found = []
    for shared in ("auto", False):
        with JobThread(script, constructor={"shared_memory": shared}) as service:
            loaders = [DataServiceLoader(service.address, mesh=mesh, rank=r) for r in range(mesh.world_size)]
            found.append(
                [[fingerprint(take_step(loader)) for loader in loaders] for _ in range(script.num_steps)]
            )
            assert (status(service).lent_total > 0) == (shared == "auto")
            for loader in loaders:
                loader.close()
    assert found[0] == found[1]


def test_ranks_that_share_a_batch_map_one_copy_and_do_not_see_each_others_writes(service, sent):
    mesh = Mesh(tp=2)
    loaders = [DataServiceLoader(service.address, mesh=mesh, rank=rank) for rank in range(2)]
    for loader in loaders:
        for _ in range(6):
            take_step(loader)
    before = status(service).lent_bytes
    ours, theirs = (loader.read(7) for loader in loaders)
    assert status(service).lent_bytes - before < 2 * sum(a.nbytes for b in ours for a in b.numpy.values())
    for batch in ours:
        for array in batch.numpy.values():
            assert array.flags.writeable
            array.fill(0)
    assert fingerprint(theirs) == sent[7]
    assert fingerprint(loaders[0].read(7)) == sent[7]
    for loader in loaders:
        loader.close()


def test_what_is_held_stays_as_it_was_whatever_becomes_of_loader_and_service(sent):
    with JobThread(SCRIPT) as service:
        loader = DataServiceLoader(service.address, mesh=Mesh())
        held = [take_step(loader) for _ in range(6)]
        assert is_mapped(held[4][0].numpy["labels"])
        ids = held[4][0].numpy["input_ids"]
        expected = ids.copy()
        for _ in range(6):
            take_step(loader)  # built in memory that was given back, not in what is held
        assert [fingerprint(batches) for batches in held] == sent[:6]
        loader.close()
        assert [fingerprint(batches) for batches in held] == sent[:6]
    assert [fingerprint(batches) for batches in held] == sent[:6]
    del held
    gc.collect()
    assert np.array_equal(ids, expected)  # one array keeps the memory of its step


def test_a_restarted_constructor_lends_again(service, sent):
    with DataServiceLoader(service.address, mesh=Mesh(), prefetch=1) as loader:
        held = [take_step(loader) for _ in range(4)]
        service.do(service.job.stop("constructor/0"))
        service.do(service.job.start_constructor())
        held += [take_step(loader) for _ in range(8)]
        assert [fingerprint(batches) for batches in held] == sent
        assert status(service).lent_total > 0


def test_memory_that_trainers_hold_is_bounded_and_more_is_sent(sent):
    with (
        JobThread(SCRIPT, constructor={"memory": MIB, "shared_memory": 40_000}) as service,
        DataServiceLoader(service.address, mesh=Mesh()) as loader,
    ):
        held = [take_step(loader) for _ in range(SCRIPT.num_steps)]
        assert [fingerprint(batches) for batches in held] == sent
        mapped = [is_mapped(batches[0].numpy["input_ids"]) for batches in held]
        assert 0 < sum(mapped) < SCRIPT.num_steps - 4
        assert status(service).lent_bytes <= 40_000
        assert status(service).leases == sum(mapped)


def test_a_read_again_is_lent_again(service):
    with DataServiceLoader(service.address, mesh=Mesh()) as loader:
        take_step(loader)
        before = fingerprint(loader.read(3))
        held = [loader.read(3) for _ in range(5)]
        assert all(fingerprint(batches) == before for batches in held)
        assert status(service).leases >= 5


def test_where_it_can_not_attach_it_reads_over_grpc(service, sent, monkeypatch):
    tried = []
    monkeypatch.setattr(module, "attach", lambda name: tried.append(name))
    with DataServiceLoader(service.address, mesh=Mesh()) as loader:
        assert [fingerprint(take_step(loader)) for _ in range(SCRIPT.num_steps)] == sent
    assert len(tried) == 1
    assert status(service).lent_total == 0


@pytest.mark.parametrize("num_bytes", [0, -1, 2**40])
def test_memory_that_can_not_be_mapped_is_read_over_grpc(service, sent, monkeypatch, num_bytes):
    mapping = module._mapping
    monkeypatch.setattr(module, "_mapping", lambda descriptor, _: mapping(descriptor, num_bytes))
    with DataServiceLoader(service.address, mesh=Mesh()) as loader:
        assert [fingerprint(take_step(loader)) for _ in range(SCRIPT.num_steps)] == sent
    given_back(service)


def test_memory_whose_size_is_not_sealed_is_refused():
    descriptor = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 4096)
        with pytest.raises(ValueError, match="sealed"):
            module._mapping(descriptor, 4096)
    finally:
        os.close(descriptor)


def test_nobody_to_attach_to():
    assert attach("dataloader-svc/0/nobody") is None


class Line:
    """An attachment whose other end is in the test's hand."""

    def __enter__(self):
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.attachment = Attachment(ours, "test", 1)
        return self

    def __exit__(self, *_):
        del self.attachment
        self.theirs.close()

    def send(self, lease, size=4096):
        descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        module.fcntl.fcntl(descriptor, module.fcntl.F_ADD_SEALS, module.fcntl.F_SEAL_SHRINK)
        socket.send_fds(self.theirs, [NUMBER.pack(lease)], [descriptor])
        os.close(descriptor)

    def told(self):
        return NUMBER.unpack(self.theirs.recv(8))[0]


def test_a_lease_is_over_once_whoever_ends_it():
    with Line() as line:
        first, second, third = (line.attachment.begin() for _ in range(3))
        line.attachment.abandon(first)
        line.attachment.abandon(first)
        assert line.told() == first
        gc.collect()  # of tests before
        before = descriptors()
        for lease in (first, third, second):  # the first was given up, the third comes ahead
            line.send(lease)
        array = line.attachment.map(second, 4096)
        line.attachment.abandon(second)
        line.attachment.abandon(third)
        assert line.told() == third
        view = array[3:].view()
        del array
        assert view.sum() == 0
        del view
        gc.collect()
        assert line.told() == second
        assert descriptors() == before
        with pytest.raises(SharedMemoryLost, match="given up"):
            line.attachment.map(third, 4096)


FORK = """
import fcntl, os, socket
from dataloader_client.shared import NUMBER, Attachment

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ours.setblocking(False)
attachment = Attachment(ours, "test", 1)
descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
os.ftruncate(descriptor, 4096)
fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
lease = attachment.begin()
socket.send_fds(theirs, [NUMBER.pack(lease)], [descriptor])
array = attachment.map(lease, 4096)
child = os.fork()
if child == 0:
    del array, attachment
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
theirs.settimeout(0)
try:
    raise SystemExit(f"the child has said {theirs.recv(8)}")
except BlockingIOError:
    pass
del array
assert NUMBER.unpack(theirs.recv(8))[0] == lease
"""


def test_a_forked_child_gives_nothing_back():
    """In a process of its own: gRPC, which runs in this one, does not survive every fork."""
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_constructor_that_goes_away_or_talks_nonsense_ends_the_wait():
    with Line() as line:
        lease = line.attachment.begin()
        line.theirs.send(b"nonsense that is no number")
        line.theirs.shutdown(socket.SHUT_RDWR)
        with pytest.raises(SharedMemoryLost, match="closed"):
            line.attachment.map(lease, 4096)


def test_a_constructor_that_stands_still_holds_no_trainer_up():
    with Line() as line:
        leases = [line.attachment.begin() for _ in range(3000)]
        for lease in leases:
            line.attachment.abandon(lease)  # more than the socket holds: the rest is told later
        told = []
        line.theirs.settimeout(0)
        while len(told) < len(leases):
            try:
                told.append(line.told())
            except BlockingIOError:
                line.attachment.abandon(line.attachment.begin())
                leases.append(leases[-1] + 1)
        assert sorted(told) == leases


def test_strangers_at_the_socket_end_nothing():
    """Half a hello, other words, leases of others: each ends its own connection at most."""

    async def scenario():
        segments = Segments(MIB)
        lender = Lender.open(segments)
        loop = asyncio.get_running_loop()
        arena = segments.arena(0, 1, 1000)
        arena.empty(10, np.uint8)
        heard = asyncio.Queue()
        for name in ("_over", "_end"):
            tell = partial(heard.put_nowait, name)
            act = getattr(lender, name)
            setattr(lender, name, lambda *what, act=act, tell=tell: (act(*what), tell()))
        try:
            lines = []
            for _ in range(3):
                line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                await loop.sock_connect(line, f"\0{lender.name}")
                number = NUMBER.unpack(await loop.sock_recv(line, 8))[0]
                lines.append((line, number))
            (odd, first), (stranger, second), (reader, third) = lines
            assert len({first, second, third}) == 3
            assert lender.lend(third, 1, arena.root)
            assert not lender.lend(third, 1, arena.root)  # that lease is taken
            assert not lender.lend(first + 1, 1, arena.root)
            assert (await loop.sock_recv(reader, 8)) == NUMBER.pack(1)
            odd.send(b"odd")
            stranger.send(NUMBER.pack(1))
            assert await loop.sock_recv(odd, 8) == b""
            assert {await heard.get(), await heard.get()} == {"_end", "_over"}
            assert segments.lent[1] == 1
            stranger.send(NUMBER.pack(9))
            stranger.send(NUMBER.pack(8))
            assert [await heard.get(), await heard.get()] == ["_over", "_over"]
            assert not lender.lend(second, 9, arena.root)  # that read was given up
            assert lender.lend(second, 10, arena.root)
            assert segments.lent[1] == 2
            reader.close()
            stranger.close()
            assert [await heard.get(), await heard.get()] == ["_end", "_end"]
            assert segments.lent == (0, 0)
            for line, _ in lines:
                line.close()
        finally:
            segments.close()
            lender.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_readers_wait_while_there_are_no_descriptors(monkeypatch, caplog):
    """Whoever connects then is taken in a little later, and meanwhile nobody asks in vain."""
    monkeypatch.setattr(lending, "_PAUSE_S", 0.01)

    class Listening:
        """The real socket, which has no descriptor left for the first that come."""

        def __init__(self, real):
            self.real, self.failures = real, 3
            self.fileno, self.close = real.fileno, real.close

        def accept(self):
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.real.accept()

    async def scenario():
        segments = Segments(MIB)
        lender = Lender.open(segments)
        lender._listening = Listening(lender._listening)
        try:
            attachment = await asyncio.to_thread(attach, lender.name)
            assert attachment is not None
            assert lender._listening.failures == 0
        finally:
            segments.close()
            lender.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert caplog.text.count("Too many open files") == 3


def test_threads_that_read_share_a_line(service, sent):
    with DataServiceLoader(service.address, mesh=Mesh()) as loader:
        take_step(loader)
        problems = []

        def read(first):
            for turn in range(12):
                step = (first + turn) % SCRIPT.num_steps
                if fingerprint(loader.read(step)) != sent[step]:
                    problems.append(step)

        threads = [threading.Thread(target=read, args=(3 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
    given_back(service)


def test_nothing_of_it_has_a_name(service):
    before = named_segments()
    with DataServiceLoader(service.address, mesh=Mesh()) as loader:
        held = [take_step(loader) for _ in range(5)]
        assert is_mapped(held[-1][0].numpy["labels"])
        assert not new_segments(before)
        names = re.findall(r"@dataloader-svc/\S+", Path("/proc/net/unix").read_text())
        assert names
    del held
