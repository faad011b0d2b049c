"""The exam of an engine. Subclass `EngineContract`; its roles are those of `scripted_role.py`.

    class TestMyEngine(EngineContract):
        def engine(self, run_dir: Path) -> Engine:
            return MyEngine(run_dir, ...)      # a role runs scripted_role's `play` with the spec's args

Deaths are real: the tests send SIGKILL to the pid that the engine names.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dataloader_svc.engine.base import Engine, Roles, RoleSpec, RoleState, RoleStatus
from dataloader_svc.errors import EngineError

GONE_WITHIN_S = 30.0  # how long a test waits for the end of a process before it fails


class EngineContract(ABC):
    """What every engine does."""

    @abstractmethod
    def engine(self, run_dir: Path) -> Engine:
        """A new engine whose roles are scripted ones, with short delays between restarts."""

    def drive(self, run_dir: Path, scenario: Callable[[Engine], Awaitable[None]]) -> None:
        """Run `scenario` in a loop of its own, and close the engine whatever happens."""

        async def run() -> None:
            engine = self.engine(run_dir)
            try:
                await scenario(engine)
            finally:
                await engine.close(grace_s=0)

        asyncio.run(run())

    def test_a_role_is_started_and_tells_its_address(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            assert engine.roles() == {}
            assert await engine.start(spec("loader", 3)) == "host:3"
            status = engine.roles()["loader-3"]
            assert (status.state, status.address, status.restarts) == (RoleState.READY, "host:3", 0)
            assert status.last_exit is None
            assert status.pid is not None
            os.kill(status.pid, 0)

        self.drive(tmp_path, scenario)

    def test_many_roles_start_together(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            specs = [spec("planner", 0), spec("loader", 0), spec("loader", 1), spec("constructor", 0)]
            addresses = await asyncio.gather(*(engine.start(each) for each in specs))
            assert addresses == ["host:0", "host:0", "host:1", "host:0"]
            assert len({status.pid for status in engine.roles().values()}) == 4

        self.drive(tmp_path, scenario)

    def test_stopping_asks_first_and_is_final(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("loader", 0))
            before = engine.roles()["loader-0"]
            await engine.stop("loader-0")
            await engine.stop("loader-0")
            assert engine.roles()["loader-0"] == RoleStatus("loader-0", RoleState.STOPPED, last_exit=0)
            assert engine.logs("loader-0")[-1] == "loader-0 was asked to stop"
            assert is_gone(before)

        self.drive(tmp_path, scenario)

    def test_a_stopped_role_can_be_started_again_but_a_running_one_not(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("loader", 0))
            with pytest.raises(ValueError, match="loader-0 is ready already"):
                await engine.start(spec("loader", 0))
            await engine.stop("loader-0")
            assert await engine.start(spec("loader", 0)) == "host:0"

        self.drive(tmp_path, scenario)

    def test_unknown_roles_are_key_errors(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(KeyError, match="loader-9"):
                await engine.stop("loader-9")
            with pytest.raises(KeyError, match="loader-9"):
                engine.logs("loader-9")

        self.drive(tmp_path, scenario)

    def test_a_life_is_replaced_once_and_only_that_one(self, tmp_path: Path) -> None:
        """One that is stopped by a signal, so that it does not even hear that it should end."""

        async def scenario(engine: Engine) -> None:
            address = await engine.start(spec("loader", 0))
            before = engine.roles()["loader-0"]
            assert before.pid is not None
            assert not await engine.replace("loader-0", "elsewhere:1")
            assert engine.roles()["loader-0"] == before
            os.kill(before.pid, signal.SIGSTOP)
            assert await engine.replace("loader-0", address, grace_s=0)
            after = (await engine.wait_for(ready_again("loader-0", 1)))["loader-0"]
            assert after.pid != before.pid
            assert is_gone(before)
            with pytest.raises(KeyError, match="loader-9"):
                await engine.replace("loader-9", address)

        self.drive(tmp_path, scenario)

    def test_a_killed_role_is_started_again(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("loader", 0))
            await engine.start(spec("loader", 1))
            neighbour = engine.roles()["loader-1"]
            for life in range(1, 4):
                before = engine.roles()["loader-0"]
                assert before.pid is not None
                os.kill(before.pid, signal.SIGKILL)
                after = (await engine.wait_for(ready_again("loader-0", life)))["loader-0"]
                assert after.pid != before.pid
                assert after.address == "host:0"
                assert after.last_exit == -signal.SIGKILL
            assert engine.roles()["loader-1"] == neighbour

        self.drive(tmp_path, scenario)

    def test_a_shadow_takes_the_place_of_a_dead_role_and_is_made_anew(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("loader", 7))
            shadow = RoleSpec("loader", 0, args=("shadow",), shadow=True)
            assert await engine.start(shadow) == "host:0"
            for life in range(1, 4):
                roles = await engine.wait_for(lambda roles: roles["loader-shadow-0"].state is RoleState.READY)
                warm, victim = roles["loader-shadow-0"].pid, roles["loader-7"].pid
                assert victim is not None
                os.kill(victim, signal.SIGKILL)
                roles = await engine.wait_for(
                    lambda roles: (
                        roles["loader-7"].restarts == life  # noqa: B023 - is done before the next
                        and roles["loader-7"].state is RoleState.READY
                    )
                )
                assert roles["loader-7"].pid == warm
                assert roles["loader-7"].address == "host:7"
                assert roles["loader-7"].last_exit == -signal.SIGKILL
                roles = await engine.wait_for(
                    lambda roles: (
                        roles["loader-shadow-0"].restarts == life  # noqa: B023
                        and roles["loader-shadow-0"].state is RoleState.READY
                    )
                )
                assert roles["loader-shadow-0"].pid != warm
            assert engine.logs("loader-7", 1) == [f"loader-7 runs in process {roles['loader-7'].pid}"]

        self.drive(tmp_path, scenario)

    def test_a_shadow_stands_by_for_its_own_kind_and_dies_alone(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("constructor", 0))
            await engine.start(RoleSpec("loader", 0, args=("shadow",), shadow=True))
            for name in ("loader-shadow-0", "constructor-0"):
                before = engine.roles()[name]
                assert before.pid is not None
                os.kill(before.pid, signal.SIGKILL)
                roles = await engine.wait_for(lambda roles: roles[name].restarts == 1)  # noqa: B023
                roles = await engine.wait_for(lambda roles: roles[name].state is RoleState.READY)  # noqa: B023
                assert roles[name].pid != before.pid
            assert engine.roles()["loader-shadow-0"].restarts == 1
            await engine.stop("loader-shadow-0")
            assert engine.roles()["loader-shadow-0"].state is RoleState.STOPPED

        self.drive(tmp_path, scenario)

    def test_a_role_that_ends_by_itself_is_started_again(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("loader", 0))
            pid = engine.roles()["loader-0"].pid
            assert pid is not None
            os.kill(pid, signal.SIGTERM)
            after = await engine.wait_for(ready_again("loader-0", 1))
            assert after["loader-0"].last_exit == 0

        self.drive(tmp_path, scenario)

    def test_deaths_before_being_ready_are_made_good_while_few(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            assert await engine.start(spec("planner", 0, "deaths", str(tmp_path / "n"), "3")) == "host:0"
            assert engine.roles()["planner-0"].restarts == 3

        self.drive(tmp_path, scenario)

    def test_a_crash_loop_is_given_up_with_the_last_words(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(EngineError) as info:
                await engine.start(spec("loader", 0, "exit", "77"))
            text = str(info.value)
            assert "loader-0" in text
            assert "exit code 77" in text
            assert [f"line {n}" in text.split("\n  ") for n in (9, 10, 29)] == [False, True, True]
            assert info.value.exit_code == 6
            status = engine.roles()["loader-0"]
            assert (status.state, status.restarts, status.pid) == (RoleState.FAILED, 4, None)

        self.drive(tmp_path, scenario)

    def test_a_crash_loop_later_on_reaches_who_waits(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            deaths = tmp_path / "n"
            deaths.write_text("100")
            await engine.start(spec("loader", 0, "deaths", str(deaths), "100"))
            deaths.write_text("0")  # from the next life on it dies
            pid = engine.roles()["loader-0"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="loader-0"):
                await engine.wait_for(never)
            await engine.stop("loader-0")
            assert engine.roles()["loader-0"].state is RoleState.STOPPED

        self.drive(tmp_path, scenario)

    def test_an_error_that_a_restart_does_not_mend_is_told_at_once_in_its_own_words(
        self, tmp_path: Path
    ) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(EngineError) as info:
                await engine.start(spec("loader", 0, "config-error"))
            assert str(info.value) == "loader-0: sources.web: no such path: nowhere/*.parquet"
            assert info.value.exit_code == 2
            assert engine.roles()["loader-0"].restarts == 0

        self.drive(tmp_path, scenario)

    def test_an_error_that_may_pass_is_tried_again_before_it_is_told(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(EngineError, match=r"^planner-0: state\.db: it is damaged$") as info:
                await engine.start(spec("planner", 0, "store-error"))
            assert info.value.exit_code == 5
            assert engine.roles()["planner-0"].restarts == 4

        self.drive(tmp_path, scenario)

    def test_a_failed_role_can_be_started_again(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(EngineError):
                await engine.start(spec("loader", 0, "config-error"))
            assert await engine.start(spec("loader", 0)) == "host:0"
            await engine.wait_for(lambda roles: roles["loader-0"].state is RoleState.READY)

        self.drive(tmp_path, scenario)

    def test_a_role_that_does_not_stop_is_killed_with_all_that_it_started(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            grandchild = int((await engine.start(spec("loader", 0, "stubborn"))).removeprefix("grandchild:"))
            watch = os.pidfd_open(grandchild)
            await engine.stop("loader-0", grace_s=0.05)
            assert engine.roles()["loader-0"].last_exit == -signal.SIGKILL
            await assert_ends(watch)

        self.drive(tmp_path, scenario)

    def test_what_a_killed_role_had_started_is_killed(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            grandchild = int((await engine.start(spec("loader", 0, "stubborn"))).removeprefix("grandchild:"))
            watch = os.pidfd_open(grandchild)
            pid = engine.roles()["loader-0"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await assert_ends(watch)

        self.drive(tmp_path, scenario)

    def test_a_second_stop_may_be_less_patient(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("loader", 0, "stubborn"))
            patient = asyncio.create_task(engine.stop("loader-0", grace_s=3600))
            await engine.wait_for(lambda roles: roles["loader-0"].state is RoleState.STOPPING)
            await engine.stop("loader-0", grace_s=0)
            await patient

        self.drive(tmp_path, scenario)

    def test_stopping_before_it_is_ready_ends_the_wait_for_it(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            start = asyncio.create_task(engine.start(spec("loader", 0, "slow-start")))
            await engine.wait_for(lambda roles: "loader-0" in roles and roles["loader-0"].pid is not None)
            await engine.stop("loader-0")
            with pytest.raises(EngineError, match="loader-0 was stopped before it was ready"):
                await start

        self.drive(tmp_path, scenario)

    def test_closing_stops_all_from_the_trainers_backwards(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stops = tmp_path / "stops"
        monkeypatch.setenv("SCRIPTED_ROLE_STOPS", str(stops))

        async def scenario(engine: Engine) -> None:
            for each in [
                spec("loader", 0),
                spec("constructor", 0),
                spec("planner", 0),
                spec("constructor", 1),
            ]:
                await engine.start(each)
            await engine.close()
            await engine.close()
            assert {status.state for status in engine.roles().values()} == {RoleState.STOPPED}
            order = stops.read_text().split("\n")
            assert sorted(order[:2]) == ["stopped constructor-0", "stopped constructor-1"]
            assert order[2:] == ["stopped planner-0", "stopped loader-0", ""]

        self.drive(tmp_path, scenario)

    def test_a_closed_engine_starts_nothing_and_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("loader", 0))
            waiting = asyncio.create_task(engine.wait_for(never))
            await engine.wait_for(lambda roles: roles["loader-0"].state is RoleState.READY)
            await engine.close()
            with pytest.raises(EngineError, match="closed"):
                await waiting
            with pytest.raises(EngineError, match="closed"):
                await engine.start(spec("loader", 1))

        self.drive(tmp_path, scenario)

    def test_the_log_holds_what_all_lives_wrote(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            await engine.start(spec("planner", 0, "deaths", str(tmp_path / "n"), "2"))
            await engine.stop("planner-0")
            written = [line for line in engine.logs("planner-0", 100) if not line.startswith("---")]
            assert written[:2] == ["death 1", "death 2"]
            assert written[-1] == "planner-0 was asked to stop"
            assert engine.logs("planner-0", 1) == written[-1:]

        self.drive(tmp_path, scenario)

    def test_a_mistake_in_a_condition_is_the_waiters(self, tmp_path: Path) -> None:
        async def scenario(engine: Engine) -> None:
            with pytest.raises(KeyError, match="nobody"):
                await engine.wait_for(lambda roles: roles["nobody"].pid is not None)
            assert await engine.start(spec("loader", 0)) == "host:0"

        self.drive(tmp_path, scenario)


def spec(role: str, index: int, *args: str) -> RoleSpec:
    """A scripted role; without `args` it serves."""
    assert role in ("planner", "loader", "constructor")
    return RoleSpec(role, index, args or ("serve",))  # type: ignore[arg-type]


def ready_again(name: str, restarts: int) -> Callable[[Roles], bool]:
    """The role is ready in the life after `restarts` deaths."""
    return lambda roles: roles[name].restarts == restarts and roles[name].state is RoleState.READY


def never(roles: Roles) -> bool:  # noqa: ARG001 - a condition
    """For those who wait for a failure."""
    return False


def is_gone(status: RoleStatus) -> bool:
    """No process of that number exists any more."""
    assert status.pid is not None
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return True
    return False


async def assert_ends(pidfd: int) -> None:
    """Wait for the end of a process that need not be our child, and close `pidfd`."""
    try:
        ended, _, _ = await asyncio.to_thread(select.select, [pidfd], [], [], GONE_WITHIN_S)
        assert ended, "the process still runs"
    finally:
        os.close(pidfd)
