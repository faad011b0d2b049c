"""A real job whose mixture follows what its ranks report; killed in between, it goes the same way."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from dataloader_client import Coords, DataServiceLoader, Mesh, control
from dataloader_client.losses import FloatArray, losses_by_source
from reading import Fingerprint, assert_equal, fingerprint, take_step
from real_job import Served, assert_gone, job_values, run_cli, serve, write_config, write_data

FILE = {"notes": 0.4, "pages": 0.4, "photos": 0.2}
STEPS, EVERY, LEAD = 36, 6, 16
ADAPTIVE = {
    "rule": "excess_loss",
    "options": {"references": dict.fromkeys(FILE, 1.0), "rate": 0.5},
    "every": EVERY,
    "lead": LEAD,
    "min_share": 0.1,
    "max_ratio": 2,
    "max_change": 0.05,
}
EXCESS = {"notes": 0.1, "pages": 0.5, "photos": 3.0}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return configured(tmp_path, ADAPTIVE)


def configured(folder: Path, adaptive: dict) -> Path:
    schedule = [{"step": 0, **FILE}]
    mixture = {"schedule": schedule, "adaptive": adaptive}
    return write_config(folder / "job.yaml", job_values(write_data(folder / "data"), mixture=mixture))


def sums(batches: list) -> FloatArray:
    """As if every token of a source lost 1 and the source's excess, a little more of long words."""
    found = []
    for batch in batches:
        names = batch.manifest.sources
        spans, losses = batch.manifest.columns, np.zeros(len(batch.numpy["labels"]))
        for row in range(len(spans["span_source"])):
            begin = spans["span_offset"][row]
            excess = EXCESS[names[spans["span_source"][row]]]
            losses[begin : begin + spans["span_length"][row]] = 1 + excess
        found.append(losses_by_source(batch, losses + batch.numpy["labels"] % 7 / 100))
    return np.sum(found, axis=0)


def train(
    served: Served, last: int, mesh: Mesh, kills: dict[int, str], first: int = 0, state: dict | None = None
) -> tuple[dict[int, list[Fingerprint]], list[dict]]:
    """What ranks get in steps `first` to `last` - 1, which they report of; `kills`: roles that die then."""
    found, states = {}, []
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(
                DataServiceLoader(served.address, mesh=mesh, coords=Coords(dp=dp), state=state)
            )
            for dp in range(mesh.dp)
        ]
        for step in range(first, last):
            if step in kills:
                for name, role in served.roles().items():
                    if name.startswith(kills[step]):
                        role.send_signal(signal.SIGKILL)
            batches = [take_step(loader) for loader in loaders]
            found[step] = [fingerprint(each) for each in batches]
            for loader, each in zip(loaders, batches, strict=True):
                loader.report(losses=sums(each))
            if step > first and step % EVERY == 0:  # something of the period before was reported
                settle(loaders, step)
            states.append(loaders[0].state_dict())
    return found, states


def settle(loaders: list[DataServiceLoader], step: int) -> None:
    """Wait until the period before `step` is decided: steps here are shorter than a report takes."""
    while control.show_mixture(loaders[0]._transport()).adaptive.decided < step:
        for loader in loaders:
            loader._feedback.sender.send()


def shown(served: Served) -> dict:
    return json.loads(run_cli("mixture", served.address, "show", "--json").stdout)


def forget(config: Path) -> None:
    for path in (config.parent / ".dataloader-svc").glob("*.db*"):
        path.unlink()


def assert_same(found: dict[int, list[Fingerprint]], expected: dict[int, list[Fingerprint]]) -> None:
    for rank in range(len(next(iter(expected.values())))):
        assert_equal(
            {step: each[rank] for step, each in found.items()},
            {step: each[rank] for step, each in expected.items() if step in found},
        )


def test_weights_follow_what_two_ranks_report_and_no_kill_changes_them(config: Path) -> None:
    mesh = Mesh(dp=2)
    with serve(config) as served:
        whole, states = train(served, STEPS, mesh, {})
        status = shown(served)
        text = run_cli("mixture", served.address, "show").stdout
    made = {change["at_step"]: change for change in status["changes"]}
    assert list(made) == [EVERY * period + LEAD for period in range(1, len(made) + 1)]
    assert len(made) >= 3
    assert all(change["rule"] == "excess_loss" for change in made.values())
    weights = [change["weights"]["photos"] for change in made.values()]
    assert weights[:3] == pytest.approx([0.25, 0.3, 0.35])
    assert max(weights) <= 0.4 + 1e-9, "twice what the file says"
    assert status["adaptive"]["losses"]["photos"] == pytest.approx(4.0, abs=0.07)
    assert (status["adaptive"]["expected"], status["adaptive"]["ranks"]) == (2, 2)
    assert "made by excess_loss at step" in text
    assert "follows losses by excess_loss" in text
    explained = run_cli("explain", config, "--step", EVERY + LEAD)
    assert f"from step {EVERY + LEAD} on: in the period before step {EVERY} notes lost" in explained.stdout
    explained = run_cli("explain", config, "--step", EVERY + LEAD - 1)
    assert "weights follow losses" not in explained.stdout

    forget(config)
    kills = {5: "planner", 7: "constructor", 19: "planner"}
    with serve(config) as served:
        disturbed, _ = train(served, STEPS, mesh, kills)
        again = shown(served)["changes"]
    count = min(len(again), len(status["changes"]))
    assert count >= 3
    keep = ("at_step", "weights")
    assert [{key: each[key] for key in keep} for each in again[:count]] == [
        {key: each[key] for key in keep} for each in status["changes"][:count]
    ]
    assert_same(disturbed, whole)

    forget(config)  # a state alone, on an empty store: weights to come and what decided them are in it
    middle = next(
        number for number, state in enumerate(states) if len(state["service"].get("mixture", ())) == 2
    )
    with serve(config) as served:
        resumed, _ = train(served, EVERY * 2 + LEAD + 2, mesh, {}, first=middle + 1, state=states[middle])
        assert shown(served)["adaptive"]["decided"] >= EVERY * 2
    assert_same(resumed, whole)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Fingerprint]]:
    """Of one rank, beyond the first decision."""
    with serve(configured(tmp_path_factory.mktemp("undisturbed"), ADAPTIVE)) as served:
        return train(served, EVERY + LEAD + 4, Mesh(), {})[0]


@pytest.mark.parametrize(
    "point", ["planner.losses_written", "planner.mixture_asked", "planner.mixture_written"]
)
def test_killed_while_a_report_or_a_decision_is_written(
    config: Path, tmp_path: Path, undisturbed: dict[int, list[Fingerprint]], point: str
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    fault = {"DATALOADER_FAULT": f"{point}:kill:1", "DATALOADER_FAULT_DIR": str(marks)}
    with serve(config, **fault) as served:
        found, _ = train(served, EVERY + LEAD + 4, Mesh(), {})
        assert [each["at_step"] for each in shown(served)["changes"]][:1] == [EVERY + LEAD]
    assert [path.name for path in marks.iterdir()] == [f"{point}_kill_1"]
    assert_same(found, undisturbed)


def test_a_function_beside_the_file_by_means_of_one_rank(tmp_path: Path) -> None:
    """The rule counts its calls. `check` finds what is wrong with it."""
    (tmp_path / "my_rules.py").write_text(
        "def newest(told, memory, /, *, power=1.0):\n"
        "    calls = (memory or 0) + 1\n"
        "    return {n: told.declared[n] * told.losses.get(n, 0.0) ** power for n in told.declared}, calls\n"
    )
    config = configured(tmp_path, {"rule": "my_rules:newest", "every": 4, "lead": 6, "max_ratio": 2})
    with serve(config) as served, ExitStack() as stack:
        loaders = [
            stack.enter_context(DataServiceLoader(served.address, mesh=Mesh(dp=2), coords=Coords(dp=dp)))
            for dp in range(2)
        ]
        for _ in range(20):
            for loader in loaders:
                take_step(loader)
            loaders[0].report(losses={"notes": 1.0, "pages": 3.0, "photos": 1.0})
        carried = loaders[0].state_dict()["service"]["mixture"]
        assert carried[-1]["learned"]["memory"] >= 1
        assert carried[-1]["weights"]["pages"] > 0.44
        with pytest.raises(ValueError, match="losses has 'page', which is no source; there are notes, pages"):
            loaders[0].report(losses={"page": 1.0})
        with pytest.raises(ValueError, match=r"losses have shape \(2,\); \(3, 2\) is needed"):
            loaders[0].report(losses=[1.0, 2.0])
        loaders[0].report(losses={"notes": float("nan")})
        family = served.family()
        served.process.kill()
        assert_gone(family)
    wrong = configured(tmp_path, {"rule": "my_rules:newest", "options": {"powr": 2}})
    found = run_cli("check", wrong)
    assert found.returncode == 1
    assert (
        "mixture.adaptive.rule: my_rules:newest has no option 'powr'; it takes power; did you mean 'power'?"
        in (found.stdout + found.stderr)
    )
