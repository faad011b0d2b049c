"""`explain` against what the ranks of a real job received: the same pieces, and the rows that hold them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dataloader_client import Batch, Coords, DataServiceLoader, Mesh
from dataloader_svc.testing.tokenizer import EOS
from dataloader_svc.transforms.tokenizers import Tokenizer
from real_job import job_values, run_cli, serve, write_config

MESH = Mesh(dp=2, cp=2)
STEPS = 3


@dataclass(frozen=True)
class Delivered:
    """What each rank got in steps 0 to STEPS-1, and what `explain` said of step 1 while the job ran."""

    config: Path
    steps: dict[Coords, list[list[Batch]]]
    running: dict[str, Any]


@pytest.fixture(scope="module")
def job(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Delivered:
    config = write_config(tmp_path_factory.mktemp("explain") / "mixture.yaml", job_values(data))
    with serve(config) as served:
        places = [MESH.coords(rank) for rank in range(MESH.world_size)]
        with ThreadPoolExecutor(len(places)) as pool:
            steps = dict(
                zip(places, pool.map(lambda coords: read(served.address, coords), places), strict=True)
            )
        running = explained(config, "--step", 1)
    return Delivered(config, steps, running)


def read(address: str, coords: Coords) -> list[list[Batch]]:
    with DataServiceLoader(address, mesh=MESH, coords=coords) as loader:
        return [loader.read(step) for step in range(STEPS)]


def explained(config: Path, *args: object) -> dict[str, Any]:
    result = run_cli("explain", config, "--json", *args)
    assert result.returncode == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def pieces_of(batches: list[Batch]) -> set[tuple[object, ...]]:
    return {(b.microbatch, *span[:5]) for b in batches for span in b.manifest.spans()}


@pytest.mark.parametrize(("step", "rank"), [(0, 0), (1, 1), (2, 2), (2, 3)])
def test_every_rank_got_what_the_log_says(job: Delivered, step: int, rank: int) -> None:
    coords = MESH.coords(rank)
    value = explained(job.config, "--step", step, "--rank", rank)
    assert value["mesh"] == {"dp": 2, "cp": 2, "tp": 1, "pp": 1}, "the session's mesh is the default"
    assert (value["rank"]["dp"], value["rank"]["cp"]) == (coords.dp, coords.cp)
    said = {
        (s["microbatch"], d["source"], d["epoch"], d["position"], d["start"], d["tokens"])
        for s in value["sequences"]
        for d in s["documents"]
    }
    received = job.steps[coords][step]
    assert said == pieces_of(received)
    assert value["digest"] == received[0].digest
    assert value["imbalance"]["llm"]["placed"] == received[0].metrics["llm_imbalance"]
    assert slices_said(value) == slices_received(received)


def slices_said(value: dict[str, Any]) -> set[tuple[object, ...]]:
    return {
        (d["source"], d["epoch"], d["position"], token)
        for s in value["sequences"]
        for d in s["documents"]
        for first, stop in d["slice"]
        for token in range(first, stop)
    }


def slices_received(batches: list[Batch]) -> set[tuple[object, ...]]:
    return {
        (span.source, span.epoch, span.position, span.start + token - span.offset)
        for batch in batches
        for span in batch.manifest.spans()
        for token in batch.numpy["cp_index"].tolist()
        if span.offset <= token < span.offset + span.length
    }


def test_the_rows_named_hold_the_tokens_delivered(job: Delivered, data: Path) -> None:
    tokenizer = Tokenizer.load(data / "tokenizer")
    value = explained(job.config, "--step", 1)
    rows = {
        (d["source"], d["epoch"], d["position"]): (d["shard"], d["row"])
        for s in value["sequences"]
        for d in s["documents"]
    }
    checked = 0
    for dp in range(MESH.dp):
        halves = [job.steps[Coords(dp=dp, cp=cp)][1] for cp in range(MESH.cp)]
        for parts in zip(*halves, strict=True):
            ids = np.empty(sum(len(part.numpy["input_ids"]) for part in parts), np.int64)
            for part in parts:
                ids[part.numpy["cp_index"]] = part.numpy["input_ids"]
            for span in parts[0].manifest.spans():
                if span.source == "photos":
                    continue
                shard, row = rows[span.source, span.epoch, span.position]
                words = tokenizer.encode_batch([row_text(shard, row)])[0].tolist()
                document = [*words, tokenizer.control[EOS]]
                cut = document[span.start : span.start + span.length]
                assert ids[span.offset : span.offset + span.length].tolist() == cut
                checked += 1
    assert checked >= 10


def row_text(shard: str, row: int) -> str:
    path = Path(shard)
    if path.suffix == ".jsonl":
        return str(json.loads(path.read_text().splitlines()[row])["text"])
    return str(pq.read_table(path)["content"][row].as_py())


def test_it_says_the_same_while_the_job_runs_and_after(job: Delivered) -> None:
    assert explained(job.config, "--step", 1) == job.running


def test_another_mesh_shares_the_same_step_out(job: Delivered) -> None:
    everything = explained(job.config, "--step", 0, "--mesh", "dp=1")
    shares = [explained(job.config, "--step", 0, "--mesh", "dp=2", "--rank", rank) for rank in range(2)]
    assert {share["digest"] for share in shares} == {everything["digest"]}
    numbers = sorted(s["sequence"] for share in shares for s in share["sequences"])
    assert numbers == sorted(s["sequence"] for s in everything["sequences"]) == list(range(8))


def test_words(job: Delivered) -> None:
    result = run_cli("explain", job.config, "--step", 1, "--rank", 3)
    assert result.returncode == 0, result.stderr
    assert "rank 3: dp 1, cp 1" in result.stdout
    assert "of them here" in result.stdout
    assert ".parquet:" in result.stdout
    assert "in order of arrival" in result.stdout


def test_a_step_that_is_not_in_the_log(job: Delivered) -> None:
    result = run_cli("explain", job.config, "--step", 4000)
    assert result.returncode == 4
    assert "step 4000 is not in the plan log" in result.stderr
    assert "steps 0 to" in result.stderr


def test_a_job_that_has_no_log(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "mixture.yaml", job_values(data, job="never"))
    result = run_cli("explain", config, "--step", 0)
    assert result.returncode == 4
    assert "no plan log" in result.stderr
    assert "never.db" in result.stderr
    assert not list(tmp_path.rglob("*.db")), "asking must not make a store"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--rank", 9), "rank 9 is not on mesh"),
        (("--mesh", "dp=3"), "dp=3 does not divide the 8 sequences"),
        (("--mesh", "xp=3"), "expected axes such as dp=2,cp=2"),
    ],
)
def test_a_mesh_or_rank_that_does_not_fit(job: Delivered, arguments: tuple[object, ...], part: str) -> None:
    result = run_cli("explain", job.config, "--step", 0, *arguments)
    assert result.returncode == 2
    assert part in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_rows_are_not_guessed_where_the_order_is_another(job: Delivered, data: Path) -> None:
    """A changed seed gives the same names other rows."""
    store = job.config.parent / ".dataloader-svc" / "tiny.db"
    changed = write_config(job.config.parent / "changed.yaml", job_values(data, seed=6))
    value = explained(changed, "--step", 0, "--store", f"sqlite:///{store}")
    *unknown, other = value["notes"]
    assert unknown == [
        f"{name}: rows unknown: seed changed since the step was planned"
        for name in ("notes", "pages", "photos")
    ]
    assert "configuration has changed" in other
    assert all("row" not in d for s in value["sequences"] for d in s["documents"])
