"""`check` and `preview` on a job that has a source of every kind of document."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataloader_svc.errors import Reason
from dataloader_svc.testing import tokenizer as tiny
from document_kinds import DATA, EXAMPLES, EXPECTED, PICTURE
from real_job import run_cli

REASONS = {str(reason) for reason in Reason}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sources of the page in one job, with all their bad rows."""
    folder = tmp_path_factory.mktemp("kinds")
    tiny.make_tokenizer(folder / "tokenizer")
    sources: dict[str, Any] = {}
    for job, make in DATA.items():
        make(folder)
        sources |= yaml.safe_load(EXAMPLES[job])["sources"]
    values = {
        "job": "kinds",
        "tokenizer": "tokenizer",
        "sequence_length": 256,
        "global_batch": {"sequences": 4},
        "media_tokens": {"image": tiny.IMAGE},
        "sources": {name: {**source, "max_bad_fraction": 1.0} for name, source in sources.items()},
        "mixture": {"schedule": [{"step": 0, **dict.fromkeys(sources, 1)}]},
        "loader": {"count": 1},
    }
    (folder / "kinds.yaml").write_text(yaml.safe_dump(values))
    return folder / "kinds.yaml"


def test_check_counts_what_is_bad(config: Path) -> None:
    result = run_cli("check", config, "--json")
    assert result.returncode == 0, result.stderr
    found = {source: report["bad"] for source, report in json.loads(result.stdout)["sources"].items()}
    wanted = {name: Counter(row for row in rows if row in REASONS) for name, rows in EXPECTED.items()}
    assert found == wanted


def test_preview_shows_every_document(config: Path) -> None:
    result = run_cli("preview", config, "-n", 4, "--json")
    assert result.returncode == 0, result.stderr
    shown: dict[str, set[str]] = {name: set() for name in EXPECTED}
    for sequence in json.loads(result.stdout)["sequences"]:
        for document in sequence["documents"]:
            shown[document["source"]].add(document["text"].replace("[image 56x56: 4 tokens]", PICTURE))
    for name, rows in EXPECTED.items():
        assert shown[name]
        assert shown[name] <= set(rows) - REASONS, name
