"""A real supervisor with real children, killed or interrupted: no process is left, and all stop in order."""

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

SUPERVISOR = """
import asyncio, json, signal, sys
from pathlib import Path
from dataloader_svc.engine.base import RoleSpec
from dataloader_svc.engine.local import LocalEngine

def scripted(spec):
    module = "dataloader_svc.testing.scripted_role"
    return [sys.executable, "-m", module, spec.role, str(spec.index), *spec.args]

async def main(run_dir, *acts):
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with LocalEngine(run_dir, scripted) as engine:
        specs = [RoleSpec(role, 0, (act,)) for role, act in zip(["loader", "planner", "constructor"], acts)]
        starts = [asyncio.create_task(engine.start(spec)) for spec in specs]
        await engine.wait_for(lambda roles: len(roles) == len(acts) and all(r.pid for r in roles.values()))
        if "slow-start" not in acts:
            await asyncio.gather(*starts)
        print(json.dumps([[r.pid, r.address] for r in engine.roles().values()]), flush=True)
        await stop.wait()

asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
"""
GONE_WITHIN_S = 30.0


@contextmanager
def supervisor(tmp_path, *acts):
    """(process, pidfds of its children and grandchildren)"""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), *acts],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"SCRIPTED_ROLE_STOPS": str(tmp_path / "stops")},
        start_new_session=True,  # as a terminal would: a group to send Ctrl-C to
    )
    watches = []
    with process:
        try:
            for pid, address in json.loads(process.stdout.readline()):
                watches.append(os.pidfd_open(pid))
                if address and address.startswith("grandchild:"):
                    watches.append(os.pidfd_open(int(address.removeprefix("grandchild:"))))
            yield process, watches
        finally:
            process.kill()
            for watch in watches:
                os.close(watch)


def assert_all_end(watches):
    for number, watch in enumerate(watches):
        assert select.select([watch], [], [], GONE_WITHIN_S)[0], f"process {number} still runs"


@pytest.mark.parametrize(
    "acts",
    [
        ("serve", "serve", "serve"),
        ("stubborn", "serve"),  # ignores the request, and so does what it started
        ("slow-start", "serve"),
    ],
    ids=" ".join,
)
def test_no_process_outlives_a_killed_supervisor(tmp_path, acts):
    with supervisor(tmp_path, *acts) as (process, watches):
        process.kill()
        assert_all_end(watches)


def test_children_of_a_killed_supervisor_stop_in_good_order(tmp_path):
    with supervisor(tmp_path, "serve", "serve") as (process, watches):
        process.kill()
        assert_all_end(watches)
    assert sorted((tmp_path / "stops").read_text().split("\n")) == [
        "",
        "stopped loader-0",
        "stopped planner-0",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_reaches_the_supervisor_alone_which_stops_all_from_the_trainers_backwards(tmp_path, number):
    with supervisor(tmp_path, "serve", "serve", "serve") as (process, watches):
        os.killpg(process.pid, number)
        assert process.wait() == 0
        assert_all_end(watches)
    stops = (tmp_path / "stops").read_text().split("\n")
    assert stops == ["stopped constructor-0", "stopped planner-0", "stopped loader-0", ""]


def test_a_child_stopped_by_a_signal_ends_when_it_is_continued(tmp_path):
    with supervisor(tmp_path, "serve") as (process, watches):
        signal.pidfd_send_signal(watches[0], signal.SIGSTOP)
        process.kill()
        process.wait()
        signal.pidfd_send_signal(watches[0], signal.SIGCONT)
        assert_all_end(watches)
