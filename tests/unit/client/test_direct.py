"""Reads over lines: the same batches as over gRPC; every wait ends, whatever the constructor does."""

from __future__ import annotations

import secrets
import socket
import threading

import numpy as np
import pytest

from dataloader_client import DataServiceLoader, Mesh, direct, wire
from dataloader_client import line as messages
from dataloader_client._pb import line_pb2
from dataloader_client.direct import CallFailed, Direct, NoAnswer
from dataloader_client.errors import StateMismatchError
from dataloader_client.failures import Closed, Retryable, translated
from dataloader_client.line import LineLost, Message, Receiver
from dataloader_client.wire import Decoder, Frame
from dataloader_svc.constructor.lending import Lender
from dataloader_svc.testing.scripted_job import JobThread
from dataloader_svc.testing.scripted_roles import Script
from reading import fingerprint, take_step

SCRIPT = Script(num_steps=12)
FRAME = Frame({"0/ids": np.arange(5000)}, {"step": 3})


@pytest.fixture
def counted(monkeypatch):
    """Reads that began, and those of them that took a line."""
    found = {"reads": 0, "direct": 0}
    start = Direct.start

    def counting(self, *what):
        call = start(self, *what)
        found["reads"] += 1
        found["direct"] += call is not None
        return call

    monkeypatch.setattr(Direct, "start", counting)
    return found


@pytest.fixture(scope="module")
def sent():
    """Fingerprints of all steps as they come over gRPC."""
    with pytest.MonkeyPatch.context() as patch, JobThread(SCRIPT) as service:
        patch.setattr(direct, "connect", lambda _: None)
        with DataServiceLoader(service.address, mesh=Mesh()) as loader:
            return [fingerprint(take_step(loader)) for _ in range(SCRIPT.num_steps)]


@pytest.mark.parametrize("lent", [True, False])
def test_steps_come_over_the_line_and_are_those_that_come_over_grpc(sent, counted, monkeypatch, lent):
    if not lent:
        monkeypatch.setattr(Lender, "lend", lambda *_: False)
    with (
        JobThread(SCRIPT) as service,
        DataServiceLoader(service.address, mesh=Mesh(), prefetch=1) as loader,
    ):
        assert [fingerprint(take_step(loader)) for _ in range(SCRIPT.num_steps)] == sent
        assert fingerprint(loader.read(2)) == sent[2]
        assert loader.read(SCRIPT.num_steps) == []
    # The first answer names the socket.
    assert counted["direct"] >= counted["reads"] - 2


def test_a_service_that_shares_no_memory_is_read_through_its_port(sent, counted):
    with (
        JobThread(SCRIPT, constructor={"shared_memory": False}) as service,
        DataServiceLoader(service.address, mesh=Mesh()) as loader,
    ):
        assert [fingerprint(take_step(loader)) for _ in range(SCRIPT.num_steps)] == sent
    assert counted["direct"] == 0


def test_a_restarted_constructor_is_read_over_grpc_and_then_over_its_own_line(sent, counted):
    with JobThread(SCRIPT) as service, DataServiceLoader(service.address, mesh=Mesh(), prefetch=1) as loader:
        found = [fingerprint(take_step(loader)) for _ in range(4)]
        service.do(service.job.stop("constructor/0"))
        service.do(service.job.start_constructor())
        counted.update(reads=0, direct=0)
        found += [fingerprint(take_step(loader)) for _ in range(8)]
        assert found == sent
    assert 0 < counted["reads"] - counted["direct"] < counted["reads"]


def test_errors_of_the_service_are_their_counterparts():
    status = line_pb2.LineStatus(code="FAILED_PRECONDITION", text="seed differs", error="StateError")
    stop = threading.Event()
    with pytest.raises(StateMismatchError, match="seed differs"), translated("there", stop):
        raise CallFailed(status)
    for problem in (
        CallFailed(line_pb2.LineStatus(code="UNAVAILABLE", text="stopping")),
        CallFailed(line_pb2.LineStatus(code="RESOURCE_EXHAUSTED", error="Overloaded")),
        LineLost("gone"),
        NoAnswer(),
    ):
        with pytest.raises(Retryable), translated("there", stop):
            raise problem
    stop.set()
    with pytest.raises(Closed), translated("there", stop):
        raise LineLost("gone")


class Silent:
    """A constructor's socket at which the test answers by hand."""

    def __init__(self) -> None:
        self.name = f"dataloader-svc/test/{secrets.token_hex(8)}"
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(f"\0{self.name}")
        self.listening.listen()
        self.direct = Direct()
        self.direct.heard(self.name)

    def accept(self) -> tuple[socket.socket, Message]:
        line = self.listening.accept()[0]
        return line, Receiver(line, 1 << 20).receive()

    def start(self, timeout_s: float = 60.0) -> direct.DirectCall:
        call = self.direct.start("/path", [("key", "value")], b"request", timeout_s)
        assert call is not None
        return call


@pytest.fixture
def silent():
    found = Silent()
    with found.listening:
        yield found
        found.direct.close()


def answer(line: socket.socket, call: int) -> None:
    header, payload = wire.laid_out(FRAME)
    Message.of(messages.DATA, call, header, last=True, payload=payload).send(line)


def test_a_connection_is_used_again_and_answers_to_others_are_passed_over(silent):
    call = silent.start()
    line, asked = silent.accept()
    called = line_pb2.LineCall.FromString(asked.body)
    assert (called.path, called.request) == ("/path", b"request")
    assert [(pair.key, pair.value) for pair in called.metadata] == [("key", "value")]
    with line:
        answer(line, asked.call)
        decoder = Decoder()
        call.take_in(decoder)
        assert np.array_equal(decoder.finish().arrays["0/ids"], FRAME.arrays["0/ids"])
        again = silent.start()
        second = Receiver(line, 1 << 20).receive()
        assert second.call != asked.call
        Message(messages.FAIL, asked.call, b"").send(line)
        answer(line, second.call)
        decoder = Decoder()
        again.take_in(decoder)
        assert decoder.finish().meta == {"step": 3}


def test_what_is_kept_of_a_batch_is_not_the_service_s_memory(silent):
    call = silent.start()
    line, asked = silent.accept()
    with line:
        answer(line, asked.call)
        decoder = Decoder()
        call.take_in(decoder)
        array = decoder.finish().arrays["0/ids"]
        assert array.ctypes.data % wire.ALIGN == 0
        assert isinstance(array.base, np.ndarray)
        assert array.base.base is None or isinstance(array.base.base, np.ndarray)


def test_no_answer_in_time_is_an_error_and_ends_the_connection(silent):
    call = silent.start(timeout_s=0.01)
    line, _ = silent.accept()
    with line:
        with pytest.raises(NoAnswer):
            call.take_in(Decoder())
        assert line.recv(1) == b""  # the service hears it
        silent.start()
        silent.accept()[0].close()  # a new one


@pytest.mark.parametrize("end", ["cancel", "close", "other side"])
def test_every_wait_ends(silent, end):
    call = silent.start()
    line, _ = silent.accept()
    raised: list[BaseException] = []
    began = threading.Event()

    class Begun(Decoder):
        def feed(self, message, payload=None):
            super().feed(message, payload)
            began.set()

    def take() -> None:
        try:
            call.take_in(Begun())
        except LineLost as error:
            raised.append(error)

    Message(messages.DATA, 1, wire.laid_out(FRAME)[0]).send(line)
    thread = threading.Thread(target=take)
    thread.start()
    assert began.wait(20)
    if end == "cancel":
        call.cancel()
    elif end == "close":
        silent.direct.close()
    else:
        line.close()
    thread.join(20)
    assert len(raised) == 1
    if end != "other side":
        assert line.recv(1) == b""  # the service hears it
        line.close()
    call.cancel()  # again, and too late


def test_a_read_that_nobody_takes_in_is_given_up(silent):
    call = silent.start()
    line, _ = silent.accept()
    with line:
        call.cancel()
        assert line.recv(1) == b""
        with pytest.raises(LineLost):
            call.take_in(Decoder())


def test_a_name_where_nobody_is_is_tried_once(monkeypatch):
    asked = []
    monkeypatch.setattr(direct, "connect", asked.append)
    found = Direct()
    for name in ("one", "one", "two", "two"):
        found.heard(name)
        assert found.start("/path", [], b"", 1.0) is None
    assert asked == ["one", "two"]
    assert found.start("/path", [], b"", 1.0) is None
    assert asked == ["one", "two"]
