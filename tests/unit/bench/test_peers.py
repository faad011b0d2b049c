"""The harness of the peers: what it packs, what it calls better, and that each peer has its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench.peers import family, workloads
from tests.bench.peers.child import AMOUNTS
from tests.bench.peers.loaders import common
from tests.bench.peers.report import Results
from tests.bench.peers.table import OURS, PEERS, by_name
from tests.bench.peers.task import SEQUENCE_LENGTH, Task

LOADERS = Path(common.__file__).parent


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_has_a_file_with_its_workloads(peer):
    text = (LOADERS / f"{peer.module}.py").read_text()
    for name in (*peer.workloads, *["service"] * peer.has_service, *["convert"] * peer.converts):
        assert f"\ndef {name}(task: Task" in text


@pytest.mark.parametrize("workload", workloads.WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_can_be_run_by_the_service_and_a_peer(workload):
    able = [peer.name for peer in PEERS if workload.call in peer.workloads]
    assert OURS in able
    assert len(able) > 1
    assert workload.call in AMOUNTS
    assert workloads.by_name(workload.name) is workload


def test_a_workload_that_there_is_not():
    with pytest.raises(KeyError, match="no workload 'audio'; there are text, images"):
        workloads.by_name("audio")


def test_what_others_used_is_what_the_peer_did_not(monkeypatch):
    monkeypatch.setattr(family, "_processors", iter([(100.0, 400.0), (108.0, 420.0)]).__next__)
    assert family.Machine().others(3.0) == 0.25  # 8 s busy of 20, of which the peer's 3


def test_a_peer_that_there_is_not():
    with pytest.raises(KeyError, match="no peer 'dali'; there are dataloader-svc, the library alone, torch"):
        by_name("dali")


def test_documents_are_filled_into_sequences():
    rng = np.random.default_rng(3)
    documents = [rng.integers(1, 1000, size) for size in (5, 9000, 0, 1, 30_000, 700, 8192, 8191, 2)]
    sequences = list(common.filled([documents[:3], [], documents[3:7], documents[7:]]))
    tokens = np.concatenate(documents)
    assert len(sequences) == len(tokens) // SEQUENCE_LENGTH
    labels = np.concatenate([np.append(document[1:], -100) for document in documents if len(document)])
    positions = np.concatenate([np.arange(len(document)) for document in documents])
    for number, sequence in enumerate(sequences):
        part = slice(number * SEQUENCE_LENGTH, (number + 1) * SEQUENCE_LENGTH)
        np.testing.assert_array_equal(sequence["input_ids"], tokens[part])
        np.testing.assert_array_equal(sequence["labels"], labels[part])
        np.testing.assert_array_equal(sequence["position_ids"], positions[part])
        begins = [place for place in range(1, SEQUENCE_LENGTH) if positions[part][place] == 0]
        assert sequence["cu_seqlens"].tolist() == [0, *begins, SEQUENCE_LENGTH]


def test_a_ratio_above_one_says_that_the_service_is_better():
    results = Results()
    runs = ((OURS, 30.0, 100.0), (OURS, 10.0, 100.0), (OURS, 20.0, 100.0), ("x", 10.0, 400.0))
    for peer, rate, pss in runs:
        results.add("text", "same", peer, {"rate": rate, "per_cpu_s": 1.0, "pss": pss, "first_s": 2.0})
    found = {row["figure"]: row["ratio"] for row in results.rows()}
    first = "s from a rank's start to its first batch"
    assert found == {"tokens/s": 2.0, "tokens a CPU second": 1.0, "memory, PSS": 4.0, first: 1.0}
    assert {row["peer"] for row in results.rows()} == {"x"}


def test_a_task_crosses_a_command_line():
    task = Task("web", "text", "same", "data", "converted", "scratch", rank=3, ranks=4, port=9)
    assert Task.from_json(task.to_json()) == task
