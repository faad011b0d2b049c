"""Roles of a real job are killed while trainers read: what is delivered is what an undisturbed job delivers.

Every test compares all arrays of every step, by hash, with those of a run that nobody disturbed.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dataloader_client import Coords, DataServiceLoader, Mesh
from dataloader_svc.config.load import load_config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.sample import keyed_rng
from dataloader_svc.store import open_store
from reading import Fingerprint, Reader, assert_equal, fingerprint, take_step
from real_job import job_values, run_cli, serve, write_config

STEPS = 120
ROUND = 10
"""Steps that are read around each death: more than are planned and built ahead."""

DP2 = Mesh(dp=2)
POINTS = (
    "planner.plan_made",
    "planner.plan_listed",
    "planner.plan_appended",
    "planner.plan_published",
    "store.append_written",
    "store.append_committed",
    "loader.block_read",
    "loader.fetched",
    "constructor.built",
    "constructor.sent",
)


@pytest.fixture
def config(data: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", job_values(data))


@pytest.fixture(scope="module")
def reference(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Mesh, int], Reader]:
    """What the ranks of dp=1 and dp=2 get of a job that nobody disturbs, by (mesh, dp rank)."""
    config = write_config(tmp_path_factory.mktemp("reference") / "job.yaml", job_values(data))
    found = {}
    with serve(config) as served:
        for mesh in (Mesh(), DP2):
            with ExitStack() as stack:
                for rank in range(mesh.dp):
                    reader = Reader(served.address, mesh=mesh, coords=Coords(dp=rank))
                    found[mesh, rank] = stack.enter_context(reader)
                    reader.allow(STEPS)
                for rank in range(mesh.dp):
                    found[mesh, rank].wait()
    assert len({repr(step) for step in found[Mesh(), 0].steps.values()}) == STEPS  # no two steps are alike
    return found


def steps_of(reader: Reader) -> dict[int, Fingerprint]:
    assert sorted(reader.steps) == list(range(len(reader.steps)))
    return reader.steps


def test_killed_at_random_moments(config: Path, reference: dict[tuple[Mesh, int], Reader]) -> None:
    rng = keyed_rng(0, "kill")
    victims = ["planner-0", "loader-0", "constructor-0", "loader-1", "planner-0", "constructor-0"]
    rng.shuffle(victims)
    with serve(config) as served, Reader(served.address) as reader:
        for number, victim in enumerate(victims):
            victim_process = served.roles()[victim]
            reader.allow(ROUND)
            reader.wait(number * ROUND + int(rng.integers(1, ROUND)))
            victim_process.kill()
            reader.wait()
            served.wait_said(f"{victim} is back", times=victims[: number + 1].count(victim))
        reader.allow(ROUND)
        reader.wait()
    expected = reference[Mesh(), 0]
    assert_equal(steps_of(reader), expected.steps)
    assert reader.states[len(reader.steps) - 1] == expected.states[len(reader.steps) - 1]


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_fault_points(
    config: Path, tmp_path: Path, reference: dict[tuple[Mesh, int], Reader], seed: int
) -> None:
    rng = keyed_rng(seed, "fault points")
    faults = {point: f"{point}:kill:{rng.integers(1, 12)}" for point in POINTS}
    faults["planner.joined"] = "planner.joined:kill:1"  # one rank joins once
    marks = tmp_path / "fired"
    marks.mkdir()
    environment = {"DATALOADER_FAULT": ",".join(faults.values()), "DATALOADER_FAULT_DIR": str(marks)}
    with serve(config, **environment) as served, Reader(served.address) as reader:
        reader.allow(60)
        reader.wait()
    fired = {path.name for path in marks.iterdir()}
    assert fired == {fault.replace(":", "_") for fault in faults.values()}
    assert_equal(steps_of(reader), reference[Mesh(), 0].steps)


def test_killed_between_the_writes_of_a_beginning(
    config: Path, tmp_path: Path, reference: dict[tuple[Mesh, int], Reader]
) -> None:
    """A generation's entry, its pointer, the session, and the lists before a record."""
    points = {
        "planner.generation_written": 1,
        "planner.generation_begun": 1,
        "planner.session_begun": 1,
        "planner.quarantine_listed": 3,
    }
    marks = tmp_path / "fired"
    marks.mkdir()
    faults = [f"{point}:kill:{number}" for point, number in points.items()]
    environment = {"DATALOADER_FAULT": ",".join(faults), "DATALOADER_FAULT_DIR": str(marks)}
    with serve(config, **environment) as served, Reader(served.address) as reader:
        reader.allow(30)
        reader.wait()
        served.wait_said("planner-0 is back", times=len(points))
    assert {path.name for path in marks.iterdir()} == {fault.replace(":", "_") for fault in faults}
    assert_equal(steps_of(reader), reference[Mesh(), 0].steps)
    assert reader.states[29] == reference[Mesh(), 0].states[29]


def test_killed_while_records_are_removed(
    data: Path, tmp_path: Path, reference: dict[tuple[Mesh, int], Reader]
) -> None:
    """In the transaction and behind it: the next commit removes what this one did not."""
    config = write_config(tmp_path / "job.yaml", job_values(data, planner={"keep": 2}))
    marks = tmp_path / "fired"
    marks.mkdir()
    faults = ("store.truncate_written:kill:1", "planner.truncated:kill:1")
    environment = {"DATALOADER_FAULT": ",".join(faults), "DATALOADER_FAULT_DIR": str(marks)}
    found = {}
    with serve(config, **environment) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        for step in range(3 * ROUND):
            found[step] = fingerprint(take_step(loader))
            if step % ROUND == ROUND - 1:
                loader.commit()
    assert len(list(marks.iterdir())) == len(faults)
    assert_equal(found, reference[Mesh(), 0].steps)
    gone = run_cli("explain", config, "--step", ROUND - 1)
    assert gone.returncode == 4
    assert "is not in the plan log any more" in gone.stderr


def test_killed_while_a_generation_and_changes_are_removed(
    data: Path, tmp_path: Path, reference: dict[tuple[Mesh, int], Reader]
) -> None:
    """The trainer goes back once, and asks for the weights that hold more often than changes are kept."""
    config = write_config(tmp_path / "job.yaml", job_values(data, planner={"keep": 0}))
    marks = tmp_path / "fired"
    marks.mkdir()
    faults = [
        *("planner.log_removed:kill:2", "store.remove_written:kill:4"),
        *("planner.generation_removed:kill:1", "planner.changes_truncated:kill:1"),
    ]
    environment = {"DATALOADER_FAULT": ",".join(faults), "DATALOADER_FAULT_DIR": str(marks)}
    found = {}
    with serve(config, **environment) as served, DataServiceLoader(served.address, mesh=Mesh()) as loader:
        for step in range(ROUND):
            found[step] = fingerprint(take_step(loader))
            if step == ROUND // 2:
                state = loader.state_dict()
        loader.load_state_dict(state)
        loader.skip(20 * ROUND, 20 * ROUND + 1, "of a step that nobody comes to: a generation begins")
        for step in range(ROUND // 2 + 1, 4 * ROUND):
            found[step] = fingerprint(take_step(loader))
            for _ in range(3):
                loader.set_mixture({"notes": 0.4, "pages": 0.4, "photos": 0.2})
            loader.commit()
    assert {path.name for path in marks.iterdir()} == {fault.replace(":", "_") for fault in faults}
    assert_equal(found, reference[Mesh(), 0].steps)
    spec = job_spec(load_config(config), tmp_path, "127.0.0.1:0")
    with closing(open_store(spec.store, spec.base_dir)) as store:
        assert set(store.items("generation/")) == {"generation/current", "generation/00000002"}
        assert all(store.last(f"{log}/1") is None for log in ("plan", "mixture"))
        assert len(store.read("plan/2", 0, 100)) <= 2 + 4 + 1  # what is planned ahead
        assert 64 <= len(store.read("mixture/2", 0, 200)) < 3 * 3 * ROUND


def test_all_roles_at_once_with_two_ranks(config: Path, reference: dict[tuple[Mesh, int], Reader]) -> None:
    with serve(config) as served, ExitStack() as stack:
        readers = [
            stack.enter_context(Reader(served.address, mesh=DP2, coords=Coords(dp=rank))) for rank in range(2)
        ]
        for number in range(2):
            processes = served.roles()
            for reader in readers:
                reader.allow(ROUND)
            readers[number].wait(number * ROUND + 4)
            for process in processes.values():
                process.kill()
            for reader in readers:
                reader.wait()
            for name in processes:
                served.wait_said(f"{name} is back", times=number + 1)
    for rank, reader in enumerate(readers):
        assert_equal(steps_of(reader), reference[DP2, rank].steps)


def test_stopped_for_a_while(config: Path, reference: dict[tuple[Mesh, int], Reader]) -> None:
    """SIGSTOP is what a swapping or overloaded machine looks like: nobody is dead, nothing is restarted."""
    with serve(config) as served, Reader(served.address) as reader:
        for number, name in enumerate(("planner-0", "loader-0", "constructor-0")):
            process = served.roles()[name]
            reader.allow(ROUND)
            reader.wait(number * ROUND + 3)
            process.send_signal(signal.SIGSTOP)
            threading.Event().wait(2.0)  # the fault itself
            process.send_signal(signal.SIGCONT)
            reader.wait()
        assert served.stderr == ""
    assert_equal(steps_of(reader), reference[Mesh(), 0].steps)
