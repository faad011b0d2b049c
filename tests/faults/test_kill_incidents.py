"""The planner is killed when incidents are in the store and the block they came with is not used yet.

The library that tokenizes really errs, in every process of the job: a folder in front of all others on the
path holds another `fastokens`, which gives one wrong id for each text that begins with a 7.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataloader_client import Mesh
from reading import Reader, assert_equal
from real_job import environment, job_values, run_cli, serve, write_config

STEPS = 40

ERRING = """
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

import numpy as np

elsewhere = [folder for folder in sys.path if Path(folder) != Path(__file__).parent]
spec = PathFinder.find_spec("fastokens", elsewhere)
real = sys.modules["fastokens"] = module_from_spec(spec)  # its own modules are found below it
spec.loader.exec_module(real)


class Tokenizer:
    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    @classmethod
    def from_json_str(cls, document):
        return cls(right.from_json_str(document))

    def encode_batch_flat(self, texts, **options):
        ids, offsets = self._tokenizer.encode_batch_flat(texts, **options)
        ids, offsets = np.frombuffer(ids, "<i4").copy(), np.frombuffer(offsets, "<i8")
        for start, text in zip(offsets, texts):
            if text.startswith("7"):
                ids[start] += 1
        return ids.tobytes(), offsets.tobytes()


right, real.Tokenizer = real.Tokenizer, Tokenizer
"""


@pytest.fixture
def erring(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "erring"
    folder.mkdir()
    (folder / "fastokens.py").write_text(ERRING)
    return {"PYTHONPATH": f"{folder}:{environment()['PYTHONPATH']}"}


def test_killed_when_incidents_are_listed(data: Path, tmp_path: Path, erring: dict[str, str]) -> None:
    """Listed again under the same keys, so once; their samples are delivered, once as well."""
    values = job_values(data, tokenizer_backend="fastokens", tokenizer_verify=1.0)
    marks = tmp_path / "fired"
    marks.mkdir()
    faults = [f"planner.incidents_listed:kill:{number}" for number in (1, 3)]
    killed = {"DATALOADER_FAULT": ",".join(faults), "DATALOADER_FAULT_DIR": str(marks)}
    found = []
    for name, fault in (("undisturbed", {}), ("killed", killed)):
        (tmp_path / name).mkdir()
        config = write_config(tmp_path / name / "job.yaml", values)
        with serve(config, **erring, **fault) as service, Reader(service.address, mesh=Mesh()) as reader:
            reader.allow(STEPS)
            reader.wait()
            service.wait_said("planner-0 is back", times=len(faults) if fault else 0)
        listed = json.loads(run_cli("incidents", config, "--json", "--source", "notes").stdout)
        found.append((reader, [row for row in listed if row["epoch"] == 0]))
    assert {path.name for path in marks.iterdir()} == {fault.replace(":", "_") for fault in faults}

    (undisturbed, expected), (reader, listed) = found
    assert_equal(reader.steps, undisturbed.steps)
    assert reader.states[STEPS - 1] == undisturbed.states[STEPS - 1]
    assert reader.states[STEPS - 1]["service"]["sources"]["notes"]["epoch"] > 0, "all of the source was read"
    assert listed == expected
    texts = [_text(data, row["shard"], row["row"]) for row in listed]
    numbers = [str(number) for number in range(120) if str(number).startswith("7")]
    assert sorted(text.split(":")[0] for text in texts) == numbers


def _text(data: Path, shard: str, row: int) -> str:
    (file,) = (path for path in (data / "notes").iterdir() if path.name == Path(shard).name)
    return json.loads(file.read_text().splitlines()[row])["text"]
