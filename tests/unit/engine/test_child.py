"""The inside of a role process, each in a real one, and the line to the engine played by the test."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from dataloader_svc.engine.child import CONTROL_FD

ROLE = """
import asyncio, os, signal, subprocess, sys
from dataloader_svc.engine.child import ChildContext, run_child
from dataloader_svc.errors import StateError
async def body(context):
{body}
sys.exit(run_child(body))
"""
SERVE = """
    context.ready("host:1")
    await context.stop_requested.wait()
    print("stopped", flush=True)
"""
BUSY = """
    context.ready("host:1")
    while True:
        pass
"""
FAIL = """
    error = StateError("plan/0 does not fit")
    error.add_note("in state.db")
    raise error
"""


@contextmanager
def role(body, *, engine=True):
    """(process, the engine's end of the line) of a role that runs `body`."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", ROLE.format(body=body)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | ({CONTROL_FD: str(theirs.fileno())} if engine else {}),
            pass_fds=[theirs.fileno()] if engine else [],
            start_new_session=True,
        )
        theirs.close()
        with process:
            try:
                yield process, ours
            finally:
                process.kill()


def message(line):
    with line.makefile() as file:
        return json.loads(file.readline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_ends_it_in_order(number):
    with role(SERVE) as (process, line):
        assert message(line) == {"ready": "host:1"}
        process.send_signal(number)
        assert process.stdout.read() == "stopped\n"
        assert process.wait() == 0


def test_the_end_of_the_line_is_a_request_to_stop():
    with role(SERVE) as (process, line):
        assert message(line) == {"ready": "host:1"}
        line.close()
        assert process.stdout.read() == "stopped\n"
        process.wait()


def test_who_does_not_stop_when_the_engine_is_gone_is_killed():
    with role(BUSY) as (process, line):
        assert message(line) == {"ready": "host:1"}
        line.close()
        assert process.wait() == -signal.SIGKILL


def test_an_engine_that_died_before_the_role_began_is_noticed():
    with role(SERVE) as (process, line):
        line.close()
        assert process.wait() in (0, -signal.SIGTERM, -signal.SIGKILL)


def test_an_error_of_ours_is_told_printed_and_becomes_the_exit_code():
    with role(FAIL) as (process, line):
        assert message(line) == {"failed": "plan/0 does not fit\nin state.db"}
        assert process.wait() == 4
        assert process.stderr.read() == "error: plan/0 does not fit\n"


def test_without_an_engine_a_person_sees_the_address_and_can_stop_it():
    with role(SERVE, engine=False) as (process, _):
        assert process.stdout.readline() == "ready at host:1\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "stopped\n"
        assert process.wait() == 0


def test_what_a_role_starts_does_not_hold_the_line():
    body = """
    listing = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    subprocess.Popen([sys.executable, "-c", listing], close_fds=False).wait()
    context.ready("host:1")
"""
    with role(body) as (process, line):
        assert message(line) == {"ready": "host:1"}
        assert line.recv(1) == b""  # closed with the role
        descriptors = process.stdout.read()
        assert process.wait() == 0
        assert descriptors.count("'") == 2 * 4  # standard ones and the listed folder itself
