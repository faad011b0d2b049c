"""Stop and go on: from a state, on other meshes, with other batches, on a new machine, to the data's end.

What ranks got is put together again and turned back into texts, so that a lost, repeated or moved sample
shows as its own words.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_client import Batch, DataServiceLoader, Mesh
from dataloader_client.errors import StateMismatchError
from dataloader_svc.testing.tokenizer import make_tokenizer
from dataloader_svc.transforms.tokenizers import Tokenizer
from reading import take_step
from real_job import job_values, serve, write_config

CASES = Path(__file__).parents[1] / "cases" / "data"

Step = list[list[str]]
"""Of each sequence of a step, the texts of its documents in order. Sorted, since ranks permute sequences."""


class Group:
    """All ranks of a mesh, read together; tp and pp peers aside."""

    def __init__(self, loaders: list[DataServiceLoader], mesh: Mesh, tokenizer: Tokenizer) -> None:
        self.loaders = loaders
        self._mesh = mesh
        self._tokenizer = tokenizer
        self.digests: list[str] = []

    def step(self) -> Step | None:
        """The next step, put together; None at the end of the data, which all ranks must meet at once."""
        ranks = [take_step(loader) for loader in self.loaders]
        if not any(ranks):
            return None
        assert len({(batches[0].step, len(batches)) for batches in ranks}) == 1
        assert len({batch.digest for batches in ranks for batch in batches}) == 1
        self.digests.append(ranks[0][0].digest)
        sequences: Step = []
        for first in range(0, len(ranks), self._mesh.cp):
            for parts in zip(*ranks[first : first + self._mesh.cp], strict=True):
                sequences += self._sequences(parts)
        return sorted(sequences)

    def steps(self, count: int | None = None) -> list[Step]:
        """The next steps, up to the end of the data."""
        found: list[Step] = []
        while count is None or len(found) < count:
            step = self.step()
            if step is None:
                break
            found.append(step)
        return found

    def state(self) -> dict[str, Any]:
        """The same on every rank, through JSON as in a checkpoint."""
        texts = {json.dumps(loader.state_dict(), sort_keys=True) for loader in self.loaders}
        (text,) = texts
        state: dict[str, Any] = json.loads(text)
        return state

    def _sequences(self, parts: tuple[Batch, ...]) -> Step:
        """Texts of the documents of one microbatch, from its cp ranks' slices."""
        total = sum(len(part.numpy["input_ids"]) for part in parts)
        ids = np.full(total, -1, np.int64)
        for part in parts:
            where = part.numpy.get("cp_index", np.arange(total))
            ids[where] = part.numpy["input_ids"]
        assert (ids >= 0).all()
        found: dict[int, list[str]] = {}
        for span in parts[0].manifest.spans():
            text = self._tokenizer.decode(ids[span.offset : span.offset + span.length])
            found.setdefault(span.sequence, []).append(text.removesuffix("<|end|>"))
        return list(found.values())


@contextmanager
def ranks(address: str, folder: Path, mesh: Mesh | None = None, state: Any = None) -> Iterator[Group]:
    """Clients for all ranks of `mesh`; the tokenizer is that of `folder`."""
    mesh = mesh or Mesh()
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(DataServiceLoader(address, mesh=mesh, rank=rank, state=state))
            for rank in range(mesh.world_size)
        ]
        yield Group(loaders, mesh, Tokenizer.load(folder / "tokenizer", "tokenizers"))


def case(folder: Path, name: str, paths: str | list[str], *, length: int, **changes: Any) -> dict[str, Any]:
    """A job on the lines of a trouble case, one to a sequence of `length`: a batch is so many samples."""
    make_tokenizer(folder / "tokenizer")
    at = next(CASES.glob(f"{name}-*"))
    listed = [paths] if isinstance(paths, str) else paths
    source = {
        "format": "jsonl",
        "path": [f"{at}/{path}" for path in listed],
        "text": "text",
        "shuffle": {"block": 512},
        "extent": 256,
    }
    return {
        "job": "case",
        "tokenizer": str(folder / "tokenizer"),
        "sequence_length": length,
        "global_batch": {"sequences": 4},
        "sources": {"ids": source},
        "mixture": {"schedule": [{"step": 0, "ids": 1}], "exhausted": "stop"},
        "loader": {"count": 1},
    } | changes


def ids(steps: list[Step]) -> list[int]:
    """The numbers that the documents end with."""
    texts = [text for step in steps for sequence in step for text in sequence]
    return [int(text.rpartition(" ")[2]) for text in texts]


# ---- the tiny job: texts, long documents in pieces, pictures


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Step], list[str], list[Any]]:
    """24 steps that nobody interrupts on one rank: sequences, digests, and the state before each step."""
    folder = tmp_path_factory.mktemp("unbroken")
    config = write_config(folder / "job.yaml", job_values(data))
    steps, states = [], []
    with serve(config) as served, ranks(served.address, data) as group:
        for _ in range(24):
            states.append(group.state())
            steps += group.steps(1)
    assert len({str(step) for step in steps}) == 24
    return steps, group.digests, states


def test_on_other_meshes(data: Path, tmp_path: Path, unbroken: tuple[Any, Any, Any]) -> None:
    """Twice from each state, in a store that begins empty and so also goes on from older states."""
    steps, digests, states = unbroken
    config = write_config(tmp_path / "job.yaml", job_values(data))
    meshes = [Mesh(dp=2, cp=2), Mesh(dp=8), Mesh(cp=4), Mesh(dp=2, tp=2, pp=2), Mesh(dp=4, cp=2)]
    with serve(config) as served:
        for mesh, start in zip(meshes, (5, 13, 1, 9, 13), strict=True):
            only_dp_cp = Mesh(dp=mesh.dp, cp=mesh.cp)
            with ranks(served.address, data, only_dp_cp, states[start]) as group:
                assert group.steps(4) == steps[start : start + 4]
                middle = group.state()
                assert group.digests == digests[start : start + 4]
            assert middle == states[start + 4]
            with ranks(served.address, data, Mesh(dp=4), middle) as group:
                assert group.steps(2) == steps[start + 4 : start + 6]


def test_on_a_new_machine_with_the_data_elsewhere(
    data: Path, tmp_path: Path, unbroken: tuple[Any, Any, Any]
) -> None:
    steps, _, states = unbroken
    moved = tmp_path / "elsewhere"
    shutil.copytree(data, moved, ignore=shutil.ignore_patterns("index"))
    config = write_config(tmp_path / "job.yaml", job_values(moved))
    with serve(config) as served, ranks(served.address, moved, Mesh(dp=2), states[10]) as group:
        assert group.steps(5) == steps[10:15]


def test_the_seed_may_not_change_unless_forced(
    data: Path, tmp_path: Path, unbroken: tuple[Any, Any, Any]
) -> None:
    _, _, states = unbroken
    config = write_config(tmp_path / "job.yaml", job_values(data, seed=6))
    assert states[3]["service"]["waiting"]
    with serve(config) as served:
        with pytest.raises(StateMismatchError, match="seed"):
            DataServiceLoader(served.address, state=states[3])
        with DataServiceLoader(served.address, state=states[3], force=True) as loader:
            assert [batches[0].step for batches in (take_step(loader) for _ in range(3))] == [3, 4, 5]


def test_another_batch_and_other_weights_lose_nothing(data: Path, tmp_path: Path) -> None:
    """Half-way, half the sequences and other weights: each sample of an epoch still comes once, in full."""
    values = job_values(data)
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        parts = spans(loader, 12)
        state = json.loads(json.dumps(loader.state_dict()))
    values["global_batch"] = {"sequences": 4}
    values["mixture"]["schedule"] = [{"step": 0, "notes": 0.2, "pages": 0.2, "photos": 0.6}]
    with (
        serve(write_config(config, values)) as served,
        DataServiceLoader(served.address, state=state) as loader,
    ):
        parts += spans(loader, 24)
        at = loader.state_dict()["service"]
    tokens: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for source, epoch, position, start, length in parts:
        tokens.setdefault((source, epoch, position), []).append((start, length))
    for sample, pieces in tokens.items():
        ends = [0, *(start + length for start, length in sorted(pieces))]
        assert [start for start, _ in sorted(pieces)] == ends[:-1], sample  # no gap, no overlap
    waiting = {tuple(entry[:3]) for entry in at["waiting"]}
    rows = {"notes": 120, "pages": 60, "photos": 48}
    for source, count in rows.items():
        reached = at["sources"][source]
        drawn = {(source, e, p) for e in range(reached["epoch"]) for p in range(count)}
        drawn |= {(source, reached["epoch"], p) for p in range(reached["position"])}
        assert drawn == {sample for sample in tokens.keys() | waiting if sample[0] == source}


def spans(loader: DataServiceLoader, steps: int) -> list[tuple[str, int, int, int, int]]:
    return [tuple(span[:5]) for _ in range(steps) for b in take_step(loader) for span in b.manifest.spans()]


# ---- case 55: a stream of ids, stopped anywhere


def test_case_55_a_stream_of_ids(tmp_path: Path) -> None:
    values = case(tmp_path, "55", ["part0.jsonl", "part1.jsonl", "part2.jsonl"], length=6)
    config = write_config(tmp_path / "job.yaml", values)
    two = Mesh(dp=2)
    with serve(config) as served:
        states = []
        with ranks(served.address, tmp_path, two) as group:
            reference = []
            while True:
                states.append(group.state())
                assert group.state() == states[-1]  # saving twice without a step
                step = group.step()
                if step is None:
                    break
                reference.append(step)
            past_the_end = group.state()
        assert Counter(ids(reference)) == Counter(range(101))
        last = len(reference)
        assert past_the_end == states[last]
        sizes = [len(json.dumps(state)) for state in states]
        assert max(sizes) < min(sizes) + 300  # what waits, and more digits
        for done in (0, 1, 5, last - 1, last):
            with ranks(served.address, tmp_path, two, states[done]) as group:
                assert group.steps() == reference[done:]
        for mesh in (Mesh(), Mesh(dp=4)):
            with ranks(served.address, tmp_path, mesh, states[6]) as group:
                assert group.steps() == reference[6:]
        # Save, resume, two steps, save, resume again.
        with ranks(served.address, tmp_path, two, states[3]) as group:
            assert group.steps(2) == reference[3:5]
            again = group.state()
        with ranks(served.address, tmp_path, two, again) as group:
            assert group.steps() == reference[5:]
    for sequences, count in ((3, 2), (10, 1)):  # other ranks, batches and numbers of loaders
        values |= {
            "global_batch": {"sequences": sequences},
            "loader": {"count": count},
            "job": f"b{sequences}",
        }
        with serve(write_config(config, values)) as served:
            mesh = Mesh(dp=3 if sequences == 3 else 5)
            with ranks(served.address, tmp_path, mesh, states[6]) as group:
                rest = group.steps()
        assert Counter(ids(reference[:6]) + ids(rest)) == Counter(range(101))


def test_case_55_the_next_epoch_is_full(tmp_path: Path) -> None:
    values = case(tmp_path, "55", "part*.jsonl", length=6)
    values["mixture"]["exhausted"] = "repeat"
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        found = spans(loader, 90)
    for epoch in range(3):
        positions = [position for _, of, position, _, _ in found if of == epoch]
        assert sorted(positions) == list(range(101))


# ---- cases 54 and 52: fewer samples than ranks would like


def test_case_54_ranks_end_together(tmp_path: Path) -> None:
    """33 ids on 4 and on 8 ranks: 5 steps where the last is filled up, 4 where it is dropped."""
    values = case(tmp_path, "54", "s?.jsonl", length=7, global_batch={"sequences": 8}, last_batch="pad")
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served:
        for dp in (4, 8):
            with ranks(served.address, tmp_path, Mesh(dp=dp)) as group:
                steps = group.steps()  # asserts that all ranks have a batch in each step
                assert len(steps) == 5
                assert sorted(ids(steps)) == list(range(33))
                assert [list(loader) for loader in group.loaders] == [[]] * dp  # and stay at the end
    for unit in ("sequences", "samples"):
        changes = {"last_batch": "drop", "job": f"drop-{unit}", "global_batch": {unit: 8}}
        with serve(write_config(config, values | changes)) as served:
            found = set()
            for dp in (4, 8, 1):
                with ranks(served.address, tmp_path, Mesh(dp=dp)) as group:
                    steps = group.steps()
                    assert [len(step) for step in steps] == [8, 8, 8, 8]
                    assert len(set(ids(steps))) == 32
                    found.add(repr(steps))
                    assert [list(loader) for loader in group.loaders] == [[]] * dp
            assert len(found) == 1  # the same on every mesh
            assert "the data ends before step 4; left over: 1 samples, " in served.logs()


def test_case_52_smaller_than_a_batch(tmp_path: Path) -> None:
    values = case(tmp_path, "52", "tiny.jsonl", length=8, global_batch={"sequences": 8}, last_batch="pad")
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served, ranks(served.address, tmp_path, Mesh(dp=4)) as group:
        assert sorted(ids(group.steps())) == [0, 1, 2]
    config = write_config(config, values | {"last_batch": "drop", "job": "drop"})
    with serve(config) as served, ranks(served.address, tmp_path, Mesh(dp=4)) as group:
        assert group.steps() == []
        assert re.search(r"WARNING .*less than one step .* there is no data", served.logs())


def test_case_52_tiny_and_big(tmp_path: Path) -> None:
    """1:1 in samples, some 200 draws: tiny comes again and again, evenly; nothing of big twice."""
    values = case(tmp_path, "52", "tiny.jsonl", length=8, global_batch={"sequences": 8})
    tiny = values["sources"]["ids"]
    values["sources"] = {"tiny": tiny, "big": {**tiny, "path": tiny["path"][0].replace("tiny", "big")}}
    values["mixture"] = {"unit": "samples", "schedule": [{"step": 0, "tiny": 1, "big": 1}]}
    config = write_config(tmp_path / "job.yaml", values)
    with serve(config) as served, ranks(served.address, tmp_path, Mesh(dp=4)) as group:
        came = Counter(ids(group.steps(24)))
        service = group.state()["service"]
    small = [came[number] for number in (0, 1, 2)]
    rest = {number: count for number, count in came.items() if number > 2}
    assert abs(sum(small) - sum(rest.values())) <= 4  # what waits at a step's end is drawn, but not come
    assert max(small) - min(small) <= 2
    assert set(rest.values()) == {1}
    assert all(number >= 1000 for number in rest)
    samples = {name: source["samples"] for name, source in service["sources"].items()}
    assert abs(samples["tiny"] - samples["big"]) <= 1
