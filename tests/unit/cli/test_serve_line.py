"""What `serve` prints for trainers names what they must show, and shows none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataloader_svc.cli.serve import _shown_by_trainers
from dataloader_svc.config.load import load_config
from real_job import job_values, write_config

PAIR = {"certificate": "service.pem", "key": "service.key"}
CANARY = "canary-5d0e77ab10c2"


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ({}, ""),
        ({"token": "${TOKEN}"}, ", token=..."),
        ({"token_file": "token"}, ", token=..."),
        ({"tls": PAIR}, ", tls=TLS(ca=...)"),
        (
            {"token": "${TOKEN}", "tls": {**PAIR, "client_ca": "ca.pem"}},
            ", token=..., tls=TLS(ca=..., certificate=..., key=...)",
        ),
    ],
)
def test_what_trainers_show(tmp_path: Path, security: dict[str, Any], expected: str) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(tmp_path, security=security))
    assert _shown_by_trainers(load_config(config, {"TOKEN": CANARY}).config) == expected
