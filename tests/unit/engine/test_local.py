"""What is particular to the engine of local processes; the rest is its contract (tests/contract)."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from dataloader_svc.engine import local
from dataloader_svc.engine.base import LAST_GRACE_S, RoleSpec, RoleState
from dataloader_svc.engine.child import CONTROL_FD
from dataloader_svc.engine.local import LocalEngine, describe_exit, role_argv
from dataloader_svc.engine.restart import RestartPolicy
from dataloader_svc.errors import EngineError
from dataloader_svc.testing.fakes import FakeClock

SPEC = RoleSpec("loader", 0)
QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.01)
SERVE = """
import os, sys
from dataloader_svc.engine.child import run_child
async def body(context):
    {extra}
    context.ready("host:1")
    await context.stop_requested.wait()
sys.exit(run_child(body))
"""


def python(extra="pass"):
    """The command line of a role that does `extra` before it is ready."""
    return lambda spec: [sys.executable, "-c", SERVE.format(extra=extra)]


def run(scenario, tmp_path, argv, **arguments):
    async def main():
        async with LocalEngine(tmp_path, argv, policy=QUICK, **arguments) as engine:
            await scenario(engine)

    asyncio.run(main())


def descriptors():
    return set(Path("/proc/self/fd").iterdir())


def test_the_command_line_of_real_roles():
    argv = role_argv(Path("/run/job.json"))(RoleSpec("loader", 3, ("--warm",)))
    assert argv == [
        *(sys.executable, "-m", "dataloader_svc.engine.role"),
        *("--role", "loader", "--index", "3", "--spec", "/run/job.json", "--warm"),
    ]


def test_a_command_that_does_not_exist_is_named(tmp_path):
    async def scenario(engine):
        with pytest.raises(EngineError, match="loader-0: can't be started: .*/no/such/python"):
            await engine.start(SPEC)
        assert "can't be started" in engine.logs("loader-0")[-1]

    run(scenario, tmp_path, lambda spec: ["/no/such/python"])


def test_a_log_folder_that_can_not_be_made_is_named(tmp_path):
    (tmp_path / "logs").write_text("a file")

    async def scenario(engine):
        with pytest.raises(EngineError, match="can't be started: .*logs"):
            await engine.start(SPEC)

    run(scenario, tmp_path, python())


def test_a_child_has_a_session_of_its_own_and_no_descriptor_too_many(tmp_path):
    extra = "print(os.getsid(0) == os.getpid(), sorted(map(int, os.listdir('/proc/self/fd'))), flush=True)"

    async def scenario(engine):
        await engine.start(SPEC)
        await engine.start(RoleSpec("loader", 1))
        first, second = (engine.logs(name)[-1].split(" ", 1) for name in ("loader-0", "loader-1"))
        assert first[0] == second[0] == "True"
        assert len(first[1].split(",")) == len(second[1].split(","))  # none of the first one's in the second

    run(scenario, tmp_path, python(extra))


def test_the_environment_is_passed_on_but_not_the_line_to_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_OURS", "1")
    extra = (
        f"print(os.environ.get('OF_OURS'), os.environ.get('ADDED'), {CONTROL_FD!r} in os.environ, flush=True)"
    )

    async def scenario(engine):
        await engine.start(SPEC)
        assert engine.logs("loader-0")[-1] == "1 2 False"

    run(scenario, tmp_path, python(extra), environment={"ADDED": "2"})


def test_nonsense_on_the_line_is_passed_over(tmp_path):
    async def scenario(engine):
        assert await engine.start(RoleSpec("loader", 7, ("babble",))) == "host:7"
        assert engine.roles()["loader-7"].restarts == 0

    run(
        scenario,
        tmp_path,
        lambda spec: [
            *(sys.executable, "-m", "dataloader_svc.testing.scripted_role"),
            *(spec.role, str(spec.index), *spec.args),
        ],
    )


def test_last_words_as_long_as_they_may_be_arrive_whole(tmp_path):
    extra = "from dataloader_svc.errors import DataError; raise DataError('\\u00e9' * 100_000)"

    async def scenario(engine):
        with pytest.raises(EngineError, match=f"^loader-0: {'é' * 16_384}$") as info:
            await engine.start(SPEC)
        assert info.value.exit_code == 3

    run(scenario, tmp_path, python(extra))


def test_a_mistake_in_a_role_leaves_its_traceback_in_log_and_error(tmp_path):
    async def scenario(engine):
        with pytest.raises(EngineError, match=r"exit code 1[^Z]*\n  ZeroDivisionError: .*$"):
            await engine.start(SPEC)
        assert engine.logs("loader-0", 1)[0].startswith("ZeroDivisionError")

    run(scenario, tmp_path, python("1 / 0"))


def test_every_descriptor_is_closed_again(tmp_path):
    async def scenario(engine):
        await engine.start(SPEC)
        await engine.stop("loader-0")
        before = descriptors()
        for _ in range(3):
            await engine.start(SPEC)
            os.kill(engine.roles()["loader-0"].pid, signal.SIGKILL)
            await engine.wait_for(lambda roles: roles["loader-0"].restarts == 1)
            await engine.stop("loader-0")
        assert descriptors() == before

    run(scenario, tmp_path, python())


def test_who_is_cancelled_while_starting_leaves_a_role_that_close_stops(tmp_path):
    async def scenario(engine):
        start = asyncio.create_task(engine.start(SPEC))
        await engine.wait_for(lambda roles: "loader-0" in roles and roles["loader-0"].pid is not None)
        start.cancel()
        await asyncio.wait([start])
        await engine.wait_for(lambda roles: roles["loader-0"].state is RoleState.READY)
        pid = engine.roles()["loader-0"].pid
        await engine.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(scenario, tmp_path, python())


def test_a_broken_supervision_is_seen(tmp_path):
    class BrokenClock(FakeClock):
        broken = True

        def monotonic(self):
            if self.broken:
                raise RuntimeError("no time")
            return super().monotonic()

    clock = BrokenClock()

    async def scenario(engine):
        with pytest.raises(EngineError, match="supervision broke: RuntimeError\\('no time'\\)"):
            await engine.start(SPEC)
        with pytest.raises(EngineError, match="no time"):
            await engine.wait_for(lambda roles: False)
        clock.broken = False

    run(scenario, tmp_path, python(), clock=clock)


def test_roles_that_hang_share_the_time_to_end(tmp_path, monkeypatch):
    clock, graces = FakeClock(), {}
    stop = local._Role.stop

    async def hang(role, grace_s):
        graces[role.spec.role] = grace_s
        clock.advance(grace_s)  # all that it was given
        await stop(role, 0)

    monkeypatch.setattr(local._Role, "stop", hang)

    async def scenario(engine):
        for role in ("planner", "loader", "constructor"):
            await engine.start(RoleSpec(role, 0))
        await engine.close(grace_s=10)
        assert graces == {"constructor": 10, "planner": LAST_GRACE_S, "loader": LAST_GRACE_S}

    run(scenario, tmp_path, python(), clock=clock)


def test_exits_in_words():
    assert [describe_exit(code) for code in (0, 3, -9, -64, -40)] == [
        "exit code 0",
        "exit code 3",
        "killed by SIGKILL",
        "killed by SIGRTMAX",
        "killed by signal 40",
    ]


def test_libraries_in_a_role_are_told_what_to_keep_unless_a_person_has(tmp_path, monkeypatch):
    def told(run_dir):
        argv = python(f"print(*map(os.environ.get, {names!r}), flush=True)")

        async def scenario(engine):
            await engine.start(SPEC)
            lines.append(engine.logs("loader-0")[-1].split())

        lines = []
        run(scenario, run_dir, argv)
        return lines[0]

    names = ["MALLOC_ARENA_MAX", "ARROW_DEFAULT_MEMORY_POOL", "FASTOKENS_BPE_THREADS"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert told(tmp_path / "1") == ["2", "system", "1"]
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    assert told(tmp_path / "2") == ["7", "system", "1"]
