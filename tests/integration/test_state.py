"""`dataloader-svc state` on states of a real job, and what a trainer gets that resumes from an edited one."""

from __future__ import annotations

import json
from pathlib import Path

from dataloader_client import DataServiceLoader
from reading import take_step
from real_job import job_values, run_cli, serve, write_config


def positions(loader: DataServiceLoader, source: str, steps: int) -> set[tuple[int, int]]:
    """(epoch, position) of what the next steps hold of a source."""
    found = set()
    for _ in range(steps):
        for batch in take_step(loader):
            manifest = batch.manifest
            wanted = manifest.columns["span_source"] == manifest.sources.index(source)
            rows = zip(
                manifest.columns["span_epoch"][wanted].tolist(),
                manifest.columns["span_position"][wanted].tolist(),
                strict=True,
            )
            found |= set(rows)
    return found


def test_show_diff_edit_and_resume(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    with serve(config) as served:
        with DataServiceLoader(served.address) as loader:
            early = loader.state_dict()
            first = positions(loader, "notes", 4)
            late = loader.state_dict()
        for name, state in (("early", early), ("late", late)):
            (tmp_path / f"{name}.json").write_text(json.dumps(state))

        shown = run_cli("state", "show", tmp_path / "late.json")
        assert shown.returncode == 0, shown.stderr
        assert "step 4, seed 5" in shown.stdout
        assert "notes" in shown.stdout
        of_log = run_cli("state", "show", config, "--json")
        assert json.loads(of_log.stdout)["step"] >= 4

        diff = run_cli("state", "diff", tmp_path / "early.json", tmp_path / "late.json", "--json")
        assert diff.returncode == 1
        fields = {row["field"]: (row["before"], row["after"]) for row in json.loads(diff.stdout)}
        assert fields["step"] == ("0", "4")
        assert fields["notes.samples"] == ("0", str(late["service"]["sources"]["notes"]["samples"]))
        assert run_cli("state", "diff", tmp_path / "late.json", tmp_path / "late.json").stdout == "equal\n"

        out = tmp_path / "new.json"
        edited = run_cli("state", "edit", tmp_path / "late.json", "--out", out, "--restart", "notes")
        assert edited.returncode == 0, edited.stderr
        assert "notes: epoch 0 position 0 up to epoch 0 position" in edited.stderr
        assert "is repeated" in edited.stderr
        with DataServiceLoader(served.address) as loader:
            loader.load_state_dict(json.loads(out.read_text()))
            again = positions(loader, "notes", 5)
            assert loader.state_dict()["step"] == 9
        assert first <= again


def test_what_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"PK\x03\x04\xff")
    refused = run_cli("state", "show", tmp_path / "weights.pt")
    assert refused.returncode != 0
    assert "take it out of a torch checkpoint first" in refused.stderr
    (tmp_path / "other.json").write_text('{"a": 1}')
    refused = run_cli("state", "show", tmp_path / "other.json")
    assert "lacks a version" in refused.stderr
    assert "other.json" in refused.stderr
    missing = run_cli("state", "show", tmp_path / "missing.json")
    assert "missing.json: No such file" in missing.stderr
    assert "Traceback" not in refused.stderr + missing.stderr
