"""`dataloader-svc formats` in a process of its own, with and without a package that brings a format."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = '''
from pydantic import Field

from dataloader_svc.config.schema import Model
from dataloader_svc.sources import SourceFormat


class Tape(SourceFormat):
    """Magnetic tape [old].

    Not said by the command.
    """

    suffixes = (".tape",)

    class Options(Model):
        reel: int = Field(description="Which reel.")
        speed: str | None = Field(default=None, description="Inches a second.")

    def index_shard(self, path): ...

    def read(self, path, extent): ...
'''


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder on sys.path that holds a package as pip leaves it."""
    (tmp_path / "tape_reader.py").write_text(MODULE)
    info = tmp_path / "tape_reader-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tape-reader\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dataloader_svc.sources]\ntape = tape_reader:Tape\n")
    return tmp_path


def run(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ)
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), env.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "dataloader_svc", "formats", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)


def test_every_format_with_its_page() -> None:
    done = run("--json")
    assert done.returncode == 0, done.stderr
    formats = {row["name"]: row for row in json.loads(done.stdout)}
    assert {"arrow", "jsonl", "parquet", "webdataset"} <= set(formats)
    root = Path(__file__).parents[2]
    for row in formats.values():
        assert row["description"].endswith("."), f"{row['name']}: {row['description']}"
        assert (root / row["page"]).is_file()
    assert formats["parquet"]["suffixes"] == [".parquet"]


def test_a_format_that_another_package_brings(installed: Path) -> None:
    done = run("tape", "--json", path=installed)
    assert json.loads(done.stdout) == [
        {
            "name": "tape",
            "description": "Magnetic tape [old].",
            "suffixes": [".tape"],
            "options": [
                {"name": "reel", "type": "int", "default": "required", "description": "Which reel."},
                {"name": "speed", "type": "str | None", "default": "none", "description": "Inches a second."},
            ],
            "origin": "tape_reader",
            "page": None,
        }
    ]
    shown = run(path=installed).stdout
    assert "Magnetic tape [old]." in shown
    assert "Inches a second." in shown
    assert "docs/formats/parquet.md" in shown


def test_a_name_that_nobody_registered() -> None:
    done = run("parqet")
    assert done.returncode == 2
    assert "did you mean 'parquet'" in done.stderr
