"""`simulate CONFIG`: the job's own steps, planned from real probes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from real_job import job_values, run_cli, write_config, write_data


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulate")
    values = job_values(write_data(folder), global_batch={"sequences": 8})
    return write_config(folder / "job.yaml", values)


def test_the_steps_are_those_that_serve_would_plan(config: Path) -> None:
    done = run_cli("simulate", config, "--dp", 4, "--cp", 2, "--pp", 2, "--steps", 6, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 6
    assert found["items_per_step"] == 8
    assert found["layout"] == {
        "dp": 4,
        "cp": 2,
        "pp": 2,
        "group_size": None,
        "chunks": 1,
        "equal_counts": True,
    }
    rows = found["strategies"]
    assert rows["lpt"]["llm"] <= rows["arrival"]["llm"]
    assert all(row["gap_to_floor"] >= -1e-12 for row in rows.values())
    assert rows["arrival"]["encoder"] > 1.0  # photos come as they come
    assert found["floor"]["llm"] >= 1.0
    assert rows["job"]["llm"] <= rows["arrival"]["llm"] + 1e-9
    packers = found["packers"]
    assert {"job", "best_fit", "first_fit", "balanced", "variable", "concatenate", "relaxed"} == set(packers)
    assert packers["concatenate"]["fill"] > 0.98
    assert packers["job"]["fill"] == packers["best_fit"]["fill"]
    assert packers["relaxed"]["fill"] < 0.9
    again = json.loads(
        run_cli("simulate", config, "--dp", 4, "--cp", 2, "--pp", 2, "--steps", 6, "--json").stdout
    )
    for name, row in rows.items():
        assert again["strategies"][name]["llm"] == row["llm"], name


def test_a_strategy_of_your_own_plans_the_job(config: Path) -> None:
    mine = config.with_name("mine.yaml")
    mine.write_text("steps: [{pack: balanced}, distribute, {balance: both}]\n")
    done = run_cli("simulate", config, "--dp", 4, "--steps", 3, "--strategy", mine, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "declared" in found["strategies"]
    same = ("sequences", "fill", "spread")
    assert [found["packers"]["declared"][name] for name in same] == [
        found["packers"]["balanced"][name] for name in same
    ]
    mine.write_text("steps: [{distribute: dp}, balance]\n")
    refused = run_cli("simulate", config, "--dp", 4, "--steps", 3, "--strategy", mine)
    assert refused.returncode == 2
    assert "sequences are made by `pack`, which the list lacks" in refused.stderr


def test_nothing_is_left_beside_the_index_and_no_store_is_made(config: Path) -> None:
    done = run_cli("simulate", config, "--dp", 2, "--steps", 2)
    assert done.returncode == 0, done.stderr
    assert "dp=2,cp=1,pp=1" in done.stdout
    assert "arrival" in done.stdout
    assert not list(config.parent.rglob("*.db"))


def test_a_mesh_that_does_not_divide_is_named(config: Path) -> None:
    done = run_cli("simulate", config, "--dp", 3)
    assert done.returncode == 2
    assert "dp=3 does not divide the 8 sequences of a step" in done.stderr


def test_a_configuration_with_problems_names_them_all(config: Path) -> None:
    broken = config.with_name("broken.yaml")
    broken.write_text(config.read_text().replace("sequence_length", "sequence_lenght"))
    done = run_cli("simulate", broken)
    assert done.returncode == 2
    assert "sequence_lenght" in done.stderr
    assert "Traceback" not in done.stderr


def test_data_that_ends_is_simulated_as_far_as_it_goes(config: Path) -> None:
    ending = config.with_name("ending.yaml")
    ending.write_text(config.read_text())
    values = job_values(config.parent, global_batch={"sequences": 8})
    values["mixture"]["exhausted"] = "stop"
    write_config(ending, values)
    done = run_cli("simulate", ending, "--dp", 2, "--steps", 500, "--json")
    assert done.returncode == 0, done.stderr
    assert 1 <= json.loads(done.stdout)["steps"] < 500
