"""The cost models that a configuration asks for, and what is wrong with those that it can't have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_balancers import LlmCost
from dataloader_balancers.cost import EncoderCost, VisionShape
from dataloader_svc.config.digest import config_hash
from dataloader_svc.config.load import ConfigProblems, load_config
from dataloader_svc.config.schema import Config
from dataloader_svc.errors import ConfigError
from dataloader_svc.planner.costs import encoder_cost, llm_cost, media_cost
from dataloader_svc.planner.pieces import Pieces

LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
LLAMA |= {"num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 1000}
VISION = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64}
VISION |= {"num_hidden_layers": 3}


def values(**cost: Any) -> dict[str, Any]:
    return {
        "job": "j",
        "tokenizer": "t.json",
        "sequence_length": 128,
        "global_batch": {"sequences": 4},
        "sources": {"a": {"format": "jsonl", "path": "a.jsonl", "text": "t"}},
        "mixture": {"schedule": [{"step": 0, "a": 1}]},
        "images": {"patch": 14, "max_pixels": 14 * 14 * 100},
        "strategy": {"cost": cost},
    }


def config(**cost: Any) -> Config:
    return Config.model_validate(values(**cost))


def test_what_is_said_of_nothing() -> None:
    assert llm_cost(config()) == LlmCost.preset("7b")
    assert encoder_cost(config()) == EncoderCost(1.0)


def test_a_model_by_name_and_coefficients() -> None:
    assert llm_cost(config(llm={"model": "qwen3-30b-a3b"})) == LlmCost.preset("qwen3-30b-a3b")
    assert llm_cost(config(llm={"quadratic": 2.0})) == LlmCost(0.0, 2.0)
    assert encoder_cost(config(encoder={"patches": 0.0})) == EncoderCost(0.0)


def test_media_are_patches_and_mel_frames() -> None:
    zeros = np.zeros(3, np.int64)
    held = {"patches": np.array([0, 4, 10]), "frames": np.array([100, 0, 20]), "media": np.ones(3, np.int64)}
    pieces = Pieces(*[zeros] * 5, block=zeros, **held)
    cost = media_cost(config(encoder={"patches": 2.0, "frames": 0.5}))
    assert cost.of_pieces(pieces).tolist() == [50, 8, 30]
    assert media_cost(config()).of_pieces(pieces).tolist() == pytest.approx([64, 4, 22.8])


def test_shapes_from_the_files_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps({**LLAMA, "vision_config": VISION}))
    found = llm_cost(config(llm={"config": "model.json"}), tmp_path)
    weights = 2 * (64 * 16 * 2 * (4 + 2) + 3 * 64 * 128) + 64 * 1000
    assert found == LlmCost(2 * weights * 1e-9, 2 * 4 * 2 * 16 * 1e-9)
    encoder = encoder_cost(config(encoder={"config": "model.json"}), tmp_path)
    assert encoder == VisionShape(32, 3, 64).cost.linearised(100)


def test_functions_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "my_costs_of_test.py").write_text(
        "def text(lengths): return 3.0 * lengths\ndef media(patches): return 7.0 + patches\n"
    )
    found = llm_cost(config(llm={"function": "my_costs_of_test:text"}), tmp_path)
    assert found.of_documents([2, 5]).tolist() == [6, 15]
    encoder = encoder_cost(config(encoder={"function": "my_costs_of_test:media"}), tmp_path)
    assert encoder.of_patches([0, 3]).tolist() == [0, 10]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "can't be read: No such file"),
        ("{", "is no JSON"),
        ("[]", "it holds no JSON object"),
        ('{"model_type": "mamba2"}', "model_type is 'mamba2'; known:"),
        ('{"model_type": "llama"}', "no num_attention_heads"),
    ],
)
def test_a_file_that_is_no_model_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "model.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"strategy\.cost\.llm\.config: .*model\.json.*{message}"):
        llm_cost(config(llm={"config": "model.json"}), tmp_path)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("costs_missing_of_test:f", "can't be imported: ModuleNotFoundError"),
        ("odd_costs_of_test:none", "has no function 'none'; functions: negative"),
        ("odd_costs_of_test:negative", "odd_costs_of_test:negative: the cost of one of 1 is -1"),
    ],
)
def test_a_function_that_is_no_cost_is_named(tmp_path: Path, function: str, message: str) -> None:
    (tmp_path / "odd_costs_of_test.py").write_text("def negative(lengths): return -lengths\n")
    with pytest.raises(ConfigError, match=rf"strategy\.cost\.encoder\.function: .*{message}"):
        encoder_cost(config(encoder={"function": function}), tmp_path)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ({"llm": {"model": "7b", "linear": 1.0}}, "strategy.cost.llm: model and linear, quadratic each say"),
        ({"llm": {"model": "7b", "config": "a"}}, "strategy.cost.llm: model and config each say"),
        ({"encoder": {"patches": 1, "config": "a"}}, "strategy.cost.encoder: patches and config each say"),
        ({"llm": {"function": "nonsense"}}, "expected MODULE:FUNCTION"),
        ({"llm": {"model": "qwen3-8bb"}}, "did you mean 'qwen3-8b'"),
    ],
)
def test_a_cost_has_one_origin(tmp_path: Path, cost: dict[str, Any], message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(values(**cost)))
    with pytest.raises(ConfigProblems) as caught:
        load_config(path)
    assert message in str(caught.value)


def test_plans_are_other_ones_where_a_file_changes(tmp_path: Path) -> None:
    """A log belongs to one way of packing: another file or another function begins another."""
    for name, first, second in (
        ("config", "{}", "{ }"),
        ("function", "def f(x): return x", "def f(x): return 2 * x"),
    ):
        path = tmp_path / "cost_file_of_test.py"
        value = path.name if name == "config" else "cost_file_of_test:f"
        asked = config(llm={name: value})
        path.write_text(first)
        before = config_hash(asked, tmp_path)
        assert config_hash(asked, tmp_path) == before
        path.write_text(second)
        assert config_hash(asked, tmp_path) != before
