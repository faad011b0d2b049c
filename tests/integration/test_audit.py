"""`audit` through the real command and processes: what holds is said to hold, what is broken is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataloader_client import Mesh
from dataloader_svc.cli import audit
from dataloader_svc.config.load import load_config
from real_job import job_values, run_cli, write_config


def test_four_meshes_hold_and_agree(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    meshes = ["dp=1", "dp=2", "dp=4", "dp=2,cp=2"]
    options = [word for mesh in meshes for word in ("--mesh", mesh)]
    done = run_cli("audit", config, "--steps", 6, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert all(report["contracts"].values())
    assert [row["mesh"] for row in report["meshes"]] == meshes
    digests = {tuple(row["digests"]) for row in report["meshes"]}
    assert len(digests) == 1
    assert len(set(digests.pop())) == 6
    assert all(row["tokens"] == report["meshes"][0]["tokens"] for row in report["meshes"])
    assert all(row["packing_efficiency"] > 0.97 for row in report["meshes"])


def test_ranks_of_a_pipeline_get_what_their_stage_needs(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data, ensure_modality=True))
    meshes = ["dp=2", "dp=2,tp=2", "dp=2,pp=3", "dp=2,cp=2,pp=2"]
    options = [word for mesh in meshes for word in ("--mesh", mesh)]
    done = run_cli("audit", config, "--steps", 4, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["contracts"]["needed"]
    plain, peers, stages, cut = (row["bytes_a_step"] for row in report["meshes"])
    assert peers["only"] == 2 * plain["only"]  # mapped once by both
    assert stages["middle"] < stages["last"] < stages["first"] < plain["only"]
    assert stages["first"] + stages["last"] - stages["middle"] == plain["only"]
    assert cut.keys() == {"first", "last"}
    assert cut["last"] < 1.5 * stages["last"]  # of two cp ranks: what is of tokens once, documents for both


def test_steps_of_samples_hold_on_every_mesh(data: Path, tmp_path: Path) -> None:
    """21 samples a step: as many microbatches on every rank, whatever dp, and long pages whole in a step."""
    batch = {"samples": 21, "per_microbatch": 2}
    config = write_config(tmp_path / "job.yaml", job_values(data, global_batch=batch))
    meshes = ["dp=1", "dp=2", "dp=2,cp=2", "dp=3"]
    options = [word for mesh in meshes for word in ("--mesh", mesh)]
    done = run_cli("audit", config, "--steps", 7, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["contracts"]["size"]
    assert all(report["contracts"].values())
    assert len({tuple(row["digests"]) for row in report["meshes"]}) == 1
    assert len({row["tokens"] for row in report["meshes"]}) == 1
    values = job_values(data, global_batch=batch, last_batch="drop")
    values["mixture"] |= {"exhausted": "drop", "unit": "samples"}
    config = write_config(config, values)
    done = run_cli("audit", config, "--steps", 99, *options[2:6], "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (first, second) = json.loads(done.stdout)["meshes"]
    assert first["steps"] == second["steps"] == (120 + 60 + 48) // 21


def test_outliers_that_wait_hold_on_every_mesh(data: Path, tmp_path: Path) -> None:
    """Relaxed: the same steps whatever the mesh, nothing lost or twice; and how long tokens waited."""
    strategy = {
        "mode": "relaxed",
        "pack": "variable",
        "fill": 0.8,
        "cost": {"llm": {"linear": 1, "quadratic": 0.02}},
    }
    config = write_config(tmp_path / "job.yaml", job_values(data, strategy=strategy))
    meshes = ["dp=1", "dp=4", "dp=2,cp=2"]
    options = [word for mesh in meshes for word in ("--mesh", mesh)]
    done = run_cli("audit", config, "--steps", 8, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert all(report["contracts"].values())
    assert len({tuple(row["digests"]) for row in report["meshes"]}) == 1
    figures = {(row["delay_steps"], row["mixture_error"]) for row in report["meshes"]}
    assert len(figures) == 1
    delay, error = figures.pop()
    assert 0.05 < delay < 2
    assert 0 < error < 0.5


def test_concatenated_documents_hold_on_every_mesh(data: Path, tmp_path: Path) -> None:
    """Texts are cut wherever a sequence is full, pictures never: every token comes, once, on any mesh."""
    config = write_config(tmp_path / "job.yaml", job_values(data, strategy={"pack": "concatenate"}))
    meshes = ["dp=1", "dp=4", "dp=2,cp=2"]
    options = [word for mesh in meshes for word in ("--mesh", mesh)]
    done = run_cli("audit", config, "--steps", 8, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert all(report["contracts"].values())
    assert len({tuple(row["digests"]) for row in report["meshes"]}) == 1
    assert all(row["packing_efficiency"] > 0.97 for row in report["meshes"])


def test_documents_by_themselves_in_rows_of_like_length(data: Path, tmp_path: Path) -> None:
    """Without packing: rows are padded to the longest of their microbatch, which are of like length."""
    changes = {"layout": "padded", "pad_to": "longest", "strategy": {"pack": "none"}}
    batch = {"samples": 24, "per_microbatch": 3}
    config = write_config(tmp_path / "job.yaml", job_values(data, global_batch=batch, **changes))
    options = [word for mesh in ("dp=1", "dp=2,cp=2") for word in ("--mesh", mesh)]
    done = run_cli("audit", config, "--steps", 4, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert all(report["contracts"].values())
    assert len({tuple(row["digests"]) for row in report["meshes"]}) == 1


def test_a_rank_at_zero_gets_empty_microbatches_and_a_fast_one_the_most(data: Path, tmp_path: Path) -> None:
    """Nothing is lost where ranks are not alike, and the times of the others are even."""
    strategy = {"balance": "both", "counts": "any", "ranks": {"llm": [1, 2, 0, 1]}}
    config = write_config(tmp_path / "job.yaml", job_values(data, strategy=strategy))
    options = [word for mesh in ("dp=4", "dp=4,cp=2") for word in ("--mesh", mesh)]
    done = run_cli("audit", config, "--steps", 4, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert all(report["contracts"].values())
    for row in report["meshes"]:
        assert row["llm_imbalance"] < 1.2 < row["llm_imbalance_arrival"]
    refused = run_cli("audit", config, "--steps", 1, "--mesh", "dp=2", timeout_s=120)
    assert refused.returncode != 0
    assert "strategy.ranks is of 4 dp ranks and the mesh has dp=2" in refused.stdout + refused.stderr


def test_a_step_without_equal_numbers_where_that_pays(data: Path, tmp_path: Path) -> None:
    """Documents by themselves are unlike; what is delivered is the same, and the gain is told."""
    cost = {"llm": {"linear": 0, "quadratic": 1}, "encoder": {"patches": 0}}
    strategy = {"pack": "none", "cost": cost, "remedies": "auto", "remedy_gain": 0.001}
    changes = {"layout": "padded", "pad_to": "longest", "strategy": strategy}
    values = job_values(data, global_batch={"samples": 12}, **changes)
    config = write_config(tmp_path / "job.yaml", values)
    options = [word for mesh in ("dp=1", "dp=4") for word in ("--mesh", mesh)]
    done = run_cli("audit", config, "--steps", 6, *options, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert all(report["contracts"].values())
    alone, four = (row["remedies"]["unequal"] for row in report["meshes"])
    assert alone == 0 < four < 1


def test_sequences_of_few_pictures(data: Path, tmp_path: Path) -> None:
    """Most of the tokens are of photos: the limit on their number binds, and each is counted."""
    mixture = {"schedule": [{"step": 0, "notes": 0.1, "photos": 0.9}]}
    full = {}
    for limit in (None, 2):
        values = job_values(data, mixture=mixture, strategy={"limits": {"media": limit}})
        del values["sources"]["pages"]
        config = write_config(tmp_path / f"job-{limit}.yaml", values)
        options = [word for mesh in ("dp=1", "dp=2,cp=2") for word in ("--mesh", mesh)]
        done = run_cli("audit", config, "--steps", 4, *options, "--json", timeout_s=240)
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(done.stdout)
        assert report["contracts"]["limits"]
        assert len({tuple(row["digests"]) for row in report["meshes"]}) == 1
        full[limit] = report["meshes"][0]["packing_efficiency"]
    assert full[2] < 0.7 < 0.95 < full[None]


def test_the_whole_of_finite_data_and_its_end(data: Path, tmp_path: Path) -> None:
    values = job_values(data)
    values["mixture"]["exhausted"] = "drop"
    config = write_config(tmp_path / "job.yaml", values)
    done = run_cli(
        "audit", config, "--steps", 1000, "--mesh", "dp=1", "--mesh", "dp=4", "--json", timeout_s=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["meshes"]
    assert rows[0]["steps"] == rows[1]["steps"] < 1000


def test_a_mesh_that_does_not_fit_and_one_that_is_none(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    done = run_cli("audit", config, "--mesh", "dp=3")
    assert done.returncode != 0
    assert "dp=3 does not divide the 8 sequences of a step" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_cli("audit", config, "--mesh", "rows=3")
    assert done.returncode == 2
    assert "expected axes such as dp=2,cp=2" in done.stderr


def test_a_service_that_lies_is_found_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One byte of one label is changed on its way from one rank: audit names step, rank and field."""
    config = write_config(tmp_path / "job.yaml", job_values(data))
    honest = audit.run_mesh

    def lying(loaded: object, mesh: Mesh, steps: int, advance: object) -> audit.MeshRun:
        run = honest(loaded, mesh, steps, advance)  # type: ignore[arg-type]
        if mesh.dp == 2:
            batch = next(b for b in run.steps[1].batches if b.dp == 1)
            labels = batch.arrays["labels"].copy()
            labels[3] += 1
            batch.arrays["labels"] = labels  # type: ignore[index]
        return run

    monkeypatch.setattr(audit, "run_mesh", lying)
    code = audit.command.main(
        [str(config), "--steps", "3", "--mesh", "dp=1", "--mesh", "dp=2"], standalone_mode=False
    )
    out = capsys.readouterr().out
    assert code == 1
    assert "BROKEN  bytes" in out
    assert "mesh dp=2 step 1: dp=1 piece" in out
    assert "field labels" in out
    assert load_config(config).config.job == "tiny"
