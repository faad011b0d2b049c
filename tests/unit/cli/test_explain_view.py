"""Which sequences and tokens a rank gets, worded and as JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from dataloader_balancers import CUTS, EncoderCost, LlmCost, remedies
from dataloader_balancers.strategy import Strategy as Graph
from dataloader_client.mesh import Mesh
from dataloader_svc.cli.contents import PieceKey
from dataloader_svc.cli.explain_view import (
    Explanation,
    SkippedView,
    cp_slices,
    explanation_json,
    explanation_lines,
    of_rank,
)
from dataloader_svc.cli.step_view import PieceView, SequenceView, sequences_of
from dataloader_svc.planner.costs import MediaCost
from dataloader_svc.planner.graph import plan_trace
from dataloader_svc.planner.pieces import Pieces
from dataloader_svc.planner.place import MeshSize, Strategy, place
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.state import State
from dataloader_svc.sample import RowRef, SampleId

STRATEGY = Strategy("lpt", 1, LlmCost(1.0, 0.0), MediaCost(EncoderCost(2.0), 0.5))
GRAPH = (
    Graph()
    .mix({"pics": 1, "web": 9})
    .cost(LlmCost(1.0, 0.0), 2.0)
    .pack("best_fit")
    .distribute()
    .balance()
    .split()
    .broadcast_at("tp")
)
LENGTHS = [[100], [60, 30], [50], [20, 10, 5]]
SKIPPED = (
    SkippedView(SampleId("web", 0, 99), "empty_text", "[only] spaces", RowRef("bad.jsonl", 4)),
    SkippedView(SampleId("web", 0, 100), "filtered", "", RowRef("[web].jsonl", 7)),
    SkippedView(SampleId("pics", 1, 2), "filtered", "", None),
    SkippedView(SampleId("web", 0, 101), "filtered", "", RowRef("[web].jsonl", 8)),
)


def plan_of(lengths: list[list[int]]) -> Plan:
    """Documents of source `web` at positions 0, 1, ...; the last one is of `pics`, with 6 patches."""
    flat = np.array([length for sequence in lengths for length in sequence])
    count = len(flat)
    source = np.zeros(count, np.int64)
    patches = np.zeros(count, np.int64)
    source[:-1], patches[-1] = 1, 6
    zeros = np.zeros(count, np.int64)
    return Plan(
        step=7,
        sources=("pics", "web"),
        sequence_length=100,
        sequence_offsets=np.cumsum([0, *map(len, lengths)]),
        pieces=Pieces(source, zeros, np.arange(count), zeros, flat, patches, zeros, zeros, zeros),
        skipped=(),
        state_json=State.initial(("pics", "web"), seed=0, config={}).to_json(),
        last=True,
        metrics={"fill": 0.5},
    )


def row_of(sample: SampleId) -> RowRef | None:
    return RowRef("[web].jsonl", sample.position + 1000) if sample.source == "web" else None


def explain(mesh: Mesh, rank: int | None) -> Explanation:
    plan = plan_of(LENGTHS)
    placement = place(plan, MeshSize(mesh.dp, mesh.cp), STRATEGY)
    coords = None if rank is None else mesh.coords(rank)
    chosen = of_rank(sequences_of(plan, STRATEGY, row_of), placement, coords)
    slices = cp_slices(chosen, mesh.cp, coords.cp, "per_document") if coords and mesh.cp > 1 else {}
    named = None if rank is None or coords is None else (rank, coords)
    steps = plan_trace(GRAPH, plan, placement, MeshSize(mesh.dp, mesh.cp), STRATEGY)
    return Explanation(
        "job", 2, plan, mesh, named, "lpt", placement, chosen, slices, SKIPPED, ("pics: gone",), steps
    )


def test_costs_and_rows_of_all_sequences() -> None:
    sequences = sequences_of(plan_of(LENGTHS), STRATEGY, row_of)
    assert [[piece.key.length for piece in s.pieces] for s in sequences] == LENGTHS
    assert [s.llm_cost for s in sequences] == [100.0, 90.0, 50.0, 35.0]
    assert [s.encoder_cost for s in sequences] == [0.0, 0.0, 0.0, 12.0]
    assert sequences[1].pieces[1].row == RowRef("[web].jsonl", 1002)
    assert sequences[3].pieces[2].row is None


def test_each_primitive_of_the_strategy_is_shown_with_what_it_did() -> None:
    explained = explain(Mesh(dp=2, cp=2), 3)
    steps = explanation_json(explained)["strategy"]
    assert [step["text"] for step in steps] == [str(node) for node in GRAPH.nodes]
    assert [(step["name"], step["inputs"], step["outputs"], step["unit"]) for step in steps] == [
        ("mix", 7, 7, "items"),
        ("cost", 7, 7, "items"),
        ("pack", 7, 4, "sequences"),
        ("distribute", 4, 4, "sequences"),
        ("balance", 4, 4, "sequences"),
        ("split", 4, 4, "sequences"),
        ("broadcast_at", 4, 4, "batches"),
    ]
    assert steps[0]["figures"]["share web"] == pytest.approx(270 / 275)
    assert steps[1]["figures"]["encoder"] == 12.0
    assert steps[2]["figures"]["fill"] == pytest.approx(275 / 400)
    assert steps[4]["figures"]["llm before"] == pytest.approx(150 / 137.5)
    assert steps[4]["figures"]["llm after"] == pytest.approx(140 / 137.5)
    assert steps[5]["figures"] == {"ranks": 2.0, "padding": 1.0 + 2.0 + 2.0, "attention max / mean": 1.0}
    text = printed(explained)
    assert all(f"\n{node}: " in text for node in GRAPH.nodes)
    assert "llm before 1.091, llm after 1.018, llm floor 1.018, llm gap 0" in " ".join(text.split())


def test_the_ranks_share_the_step_out() -> None:
    mesh = Mesh(dp=2)
    shares = [[s.number for s in explain(mesh, rank).sequences] for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == [0, 1, 2, 3]
    # 100 + 35 (+ 12 of the encoder) against 90 + 50: dearest first on each.
    assert shares == [[0, 3], [1, 2]]
    everything = explain(mesh, None)
    assert [s.number for s in everything.sequences] == [0, 3, 1, 2]


def test_json_of_one_rank() -> None:
    value = json.loads(json.dumps(explanation_json(explain(Mesh(dp=2), 1))))
    assert (value["step"], value["generation"], value["last"]) == (7, 2, True)
    assert value["rank"] == {"rank": 1, "pp": 0, "dp": 1, "cp": 0, "tp": 0}
    assert [(s["sequence"], s["dp_rank"], s["microbatch"]) for s in value["sequences"]] == [
        (1, 1, 0),
        (2, 1, 1),
    ]
    first = value["sequences"][0]["documents"][0]
    assert (first["shard"], first["row"], first["start"], first["tokens"]) == ("[web].jsonl", 1001, 0, 60)
    assert len(value["skipped"]) == len(SKIPPED)
    assert value["skipped"][0] == {
        "source": "web",
        "epoch": 0,
        "position": 99,
        "shard": "bad.jsonl",
        "row": 4,
        "reason": "empty_text",
        "detail": "[only] spaces",
    }
    # No row at all is better than a wrong one.
    assert value["skipped"][2] == {
        "source": "pics",
        "epoch": 1,
        "position": 2,
        "reason": "filtered",
        "detail": "",
    }
    llm = value["imbalance"]["llm"]
    assert llm["placed"] == pytest.approx(140 / 137.5)
    assert llm["arrival"] == pytest.approx(150 / 137.5)
    assert llm["floor"] == pytest.approx(140 / 137.5)  # no placement of these four is more even
    assert value["notes"] == ["pics: gone"]


@pytest.mark.parametrize("cut", sorted(CUTS))
@pytest.mark.parametrize("cp", [2, 4])
def test_the_slices_of_all_cp_ranks_are_the_step(cut: str, cp: int) -> None:
    sequences = tuple(
        SequenceView(
            number,
            tuple(PieceView(PieceKey("a", 0, 10 * number + i, 7 * i, n)) for i, n in enumerate(lengths)),
            0.0,
            0.0,
        )
        for number, lengths in enumerate([[13, 1, 40], [8], [], [5, 5, 5]])
    )
    slices = [cp_slices(sequences, cp, rank, cut) for rank in range(cp)]
    for sequence in sequences:
        for piece in sequence.pieces:
            runs = [run for found in slices for run in found[piece.key]]
            tokens = sorted(token for first, stop in runs for token in range(first, stop))
            assert tokens == list(range(piece.key.start, piece.key.start + piece.key.length))
    # Zig-zag: the first rank has both ends of a document that is cut by itself.
    if cut == "per_document":
        first, *_, last = slices[0][sequences[1].pieces[0].key]
        assert (first[0], last[1]) == (0, 8)


def printed(explained: Explanation) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    for line in explanation_lines(explained):
        console.print(line)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_words() -> None:
    out = printed(explain(Mesh(dp=2), 1))
    assert "job step 7, generation 2: 4 sequences, 7 documents, 275 of 400 tokens" in out
    assert "mesh pp=1,dp=2,cp=1,tp=1, rank 1: dp 1, placed by lpt" in out
    assert "sequence 1: dp 1, microbatch 0" in out
    assert "[web].jsonl:1001" in out
    assert "sequence 0" not in out
    assert "bad.jsonl:4" in out
    assert "[only] spaces" in out
    assert "note: pics: gone" in out
    # What was left out on purpose is no list: there may be thousands of them.
    assert "filtered by transforms since the step before: 1 of pics, 2 of web" in out
    assert "[web].jsonl:7" not in out


def test_words_of_a_cp_rank_say_which_tokens() -> None:
    out = printed(explain(Mesh(dp=1, cp=2), 1))
    assert "rank 1: cp 1" in out
    assert "of them here" in out
    assert "25-74" in out  # the middle half of a document of 100 tokens
    assert "--rank says which tokens" in printed(explain(Mesh(dp=1, cp=2), None))


def test_what_waits_what_waiting_cost_and_what_would_help_are_told():
    """A log of before knows no such figures, and none is made up."""
    explained = explain(Mesh(dp=2), None)
    plan = plan_of(LENGTHS)
    state = replace(plan.state, waiting=plan.pieces.take(np.array([0])), age=np.array([3]))
    old = replace(plan, state_json=state.to_json())
    new = replace(old, metrics={"delay_steps": 0.25, "mixture_error": 0.0125})
    found = remedies([9.0, 1.0, 1.0], 2, strict=True)
    texts = [_printed(replace(explained, plan=plan, remedies=found)) for plan in (old, new)]
    assert "waiting: 1 documents, 100 tokens, the oldest for 3 steps\n" in texts[0]
    assert "had waited" not in texts[0]
    assert (
        "a token of this step had waited 0.25 steps; all that was placed is 1.25% from the mixture"
        in texts[1]
    )
    assert "what helps most: cut the dearest items over several ranks (context parallel); spares" in texts[1]
    (first, *_) = explanation_json(replace(explained, remedies=found))["remedies"]
    assert first["name"] == "cut"
    assert first["keeps_samples"]
    assert 0 < first["gain"] < 1
    assert "waiting:" not in _printed(explained)


def test_a_remedy_that_was_applied_is_told():
    explained = explain(Mesh(dp=2), None)
    assert explanation_json(explained)["remedy"] is None
    assert "applied:" not in _printed(explained)
    metrics = {**explained.placement.metrics, "remedy_unequal": 0.125}
    applied = replace(explained, placement=replace(explained.placement, remedy="unequal", metrics=metrics))
    assert explanation_json(applied)["remedy"] == {"name": "unequal", "spares": 0.125}
    told = "applied: unequal, ranks have unlike numbers of sequences; spares 12% of the step's time\n"
    assert told in _printed(applied)


def _printed(explained: Explanation) -> str:
    console = Console(file=io.StringIO(), width=200)
    for part in explanation_lines(explained):
        console.print(part)
    return console.file.getvalue()
