"""`dataloader-svc incidents`: what the store lists, as a person and as a program read it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.store.incident_log import add_incidents
from dataloader_svc.store.open import open_store
from dataloader_svc.store.quarantine_log import Quarantined
from real_job import job_values, run_cli, write_config


def test_incidents_are_listed(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    store = f"sqlite:///{tmp_path / 'state.db'}"
    none = run_cli("incidents", config, "--store", store)
    assert (none.returncode, none.stdout.strip()) == (0, "no incidents"), none.stderr
    source = next(iter(job_values(data)["sources"]))
    rows = [
        Quarantined(SampleId(source, 0, n), RowRef("a.jsonl", 7 + n), "tokenizer_differs", "[1] where ...")
        for n in range(2)
    ]
    with closing(open_store(store, tmp_path)) as opened:
        add_incidents(opened, rows)
        add_incidents(opened, rows)
    listed = json.loads(run_cli("incidents", config, "--store", store, "--json").stdout)
    assert [(row["source"], row["position"], row["row"], row["kind"]) for row in listed] == [
        (source, 0, 7, "tokenizer_differs"),
        (source, 1, 8, "tokenizer_differs"),
    ]
    text = run_cli("incidents", config, "--store", store, "--source", source).stdout
    assert "a.jsonl:7" in text
    assert "2 incidents" in text
    assert run_cli("incidents", config, "--source", "nothing").returncode == 2
