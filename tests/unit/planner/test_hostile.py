"""A join with numbers that can't be is refused for what it is, before anything is made of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dataloader_client._pb import common_pb2, plan_pb2
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import MeshError, StateError
from dataloader_svc.planner.messages import MOST_RANKS, asked_mesh
from dataloader_svc.planner.state import State

PIECE = ["web", 0, 5, 0, 100, 0, 2, 1, 100]
"""A waiting sample: source, epoch, position, first token, tokens, patches, block, age, tokens of a piece."""


def text_of(**changes: Any) -> str:
    values = json.loads(State.initial(["web"], seed=1, config={"job": "1"}).to_json())
    return json.dumps(values | changes)


def with_source(**changes: Any) -> str:
    source = json.loads(text_of())["sources"]["web"]
    return text_of(sources={"web": source | changes})


def test_a_state_with_a_waiting_sample_is_one() -> None:
    assert len(State.from_json(text_of(waiting=[PIECE])).waiting) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"version":' * 50_000,
        '{"version": 1e999}',
        "9" * 5_000,
        text_of(step=float("inf")),
        text_of(seed=float("nan")),
        text_of(step=2**63),
        text_of(step=-1),
        with_source(position=2**62),
        with_source(epoch=-1),
        text_of(waiting=[[*PIECE[:4], 2**62, *PIECE[5:8], 1]]),
        text_of(waiting=[[*PIECE[:4], 2**70, *PIECE[5:]]]),
        text_of(waiting=[[*PIECE[:8], 0]]),
        text_of(waiting=[[*PIECE[:8], -1]]),
        text_of(waiting=[[*PIECE[:2], -5, *PIECE[3:]]]),
        text_of(waiting=[["other", *PIECE[1:]]]),
        with_source(position=float("inf")),
        with_source(epoch=[]),
    ],
    ids=lambda text: text[:40],
)
def test_odd_states_are_refused(text: str) -> None:
    with pytest.raises(StateError):
        State.from_json(text)


def asked(config: Config, **axes: int) -> Any:
    return asked_mesh(config, plan_pb2.JoinRequest(mesh=common_pb2.Mesh(**axes)))


def test_a_mesh_that_no_machine_has_is_refused(config: Config) -> None:
    most = 2**32 - 1
    huge = ({"tp": most}, {"pp": most, "tp": most}, {"tp": MOST_RANKS, "pp": 2}, {"dp": most, "cp": most})
    for axes in huge:
        with pytest.raises(MeshError):
            asked(config, **axes)
    assert asked(config, tp=MOST_RANKS).tp == MOST_RANKS


@pytest.fixture
def config() -> Config:
    return Config.model_validate(
        {
            "job": "tiny",
            "tokenizer": "t",
            "sequence_length": 64,
            "global_batch": {"sequences": 8},
            "sources": {"web": {"format": "jsonl", "path": "x", "text": "text"}},
            "mixture": {"schedule": [{"step": 0, "web": 1}]},
        }
    )
