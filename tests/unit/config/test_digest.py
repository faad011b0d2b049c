"""What changes the data that is read is told from what does not, by field name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dataloader_svc.config.digest import compare, config_hash, made_plans, read_digest, renamings
from dataloader_svc.config.schema import Config


def config(**changes: Any) -> Config:
    base: dict[str, Any] = {
        "job": "j",
        "tokenizer": "t.json",
        "sequence_length": 128,
        "global_batch": {"sequences": 4},
        "sources": {name: {"format": "jsonl", "path": f"{name}.jsonl", "text": "t"} for name in ("a", "b")},
        "mixture": {"schedule": [{"step": 0, "a": 1, "b": 1}]},
        "media_tokens": {"image": 1, "video": 2, "audio": 3},
    }
    for place, value in changes.items():
        *parents, last = place.split("__")
        target = base
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return Config.model_validate(base)


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("seed", 3, "seed"),
        ("sources__a__text", "body", "sources.a.text"),
        ("sources__b__shuffle", False, "sources.b.shuffle"),
        ("images__merge", 4, "images"),
        ("mel__bins", 80, "mel"),
        ("sources__b__video", {"field": "v"}, "sources.b.video or audio"),
        ("sources__b__audio", {"field": "v", "max_seconds": 5}, "sources.b.video or audio"),
        ("tokenizer_backend", "tokenizers", "tokenizer_backend"),
        ("tokenizer_options", {"preset": "gpt2"}, "tokenizer_options"),
        ("sources__b__control_words", True, "sources.b.control_words"),
    ],
)
def test_changes_of_what_is_read_are_named(tmp_path: Path, place: str, value: Any, named: str) -> None:
    before = read_digest(config(), tmp_path)
    assert compare(before, read_digest(config(**{place: value}), tmp_path)) == [named]


@pytest.mark.parametrize(
    ("place", "value"),
    [("mesh", {"dp": 4}), ("global_batch", {"sequences": 8}), ("sources__a__path", "moved/a.jsonl")],
)
def test_other_changes_are_not(tmp_path: Path, place: str, value: Any) -> None:
    assert compare(read_digest(config(), tmp_path), read_digest(config(**{place: value}), tmp_path)) == []


def test_a_tokenizer_counts_by_content(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    before = read_digest(config(), tmp_path)
    (tmp_path / "t.json").write_text('{"x": 1}')
    assert compare(before, read_digest(config(), tmp_path)) == ["tokenizer"]


def test_sources_may_come_and_go(tmp_path: Path) -> None:
    two = read_digest(config(), tmp_path)
    one = {key: value for key, value in two.items() if key != "source/b"}
    assert compare(two, one) == compare(one, two) == []


def test_300_sources_stay_small(tmp_path: Path) -> None:
    names = [f"source-{number:03}" for number in range(306)]
    many = config(
        sources={name: {"format": "jsonl", "path": "p", "text": "t"} for name in names},
        mixture={"schedule": [{"step": 0, **dict.fromkeys(names, 1.0)}]},
    )
    assert len(json.dumps(read_digest(many, tmp_path))) < 28_000


def test_the_plan_hash_ignores_the_mesh_and_sees_the_weights(tmp_path: Path) -> None:
    base = config_hash(config(), tmp_path)
    assert config_hash(config(mesh={"dp": 4}), tmp_path) == base
    assert config_hash(config(loader={"count": 5}), tmp_path) == base
    assert config_hash(config(mixture={"schedule": [{"step": 0, "a": 2, "b": 1}]}), tmp_path) != base
    assert config_hash(config(strategy={"fill": 0.8}), tmp_path) != base


def test_what_lies_beside_the_vocabulary_counts(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.model").write_bytes(b"m")
    settings = tmp_path / "tok" / "tokenizer_config.json"
    settings.write_text(json.dumps({"eos_token": "</s>", "chat_template": "a", "model_max_length": 5}))
    chats = config(tokenizer="tok", sources__a={"format": "jsonl", "path": "a", "messages": "m"})
    texts = config(tokenizer="tok")
    before = {one: read_digest(one_config, tmp_path) for one, one_config in (("c", chats), ("t", texts))}

    def changed(**values: Any) -> tuple[list[str], list[str]]:
        base = {"eos_token": "</s>", "chat_template": "a", "model_max_length": 5}
        settings.write_text(json.dumps({**base, **values}))
        after = read_digest(chats, tmp_path), read_digest(texts, tmp_path)
        return compare(before["c"], after[0]), compare(before["t"], after[1])

    assert changed(model_max_length=9) == ([], [])
    assert changed(eos_token="<eos>") == (["tokenizer"], ["tokenizer"])
    assert changed(chat_template="b") == (["chat_template"], []), "only where a source uses it"
    changed()
    (tmp_path / "tok" / "chat_template.jinja").write_text("c")
    assert changed() == (["chat_template"], [])


def test_auto_stands_for_what_it_was_decided_to_be(tmp_path: Path) -> None:
    made = config_hash(config(tokenizer_backend="tokenizers"), tmp_path)
    assert made_plans(made, config(), tmp_path)
    assert made_plans(made, config(tokenizer_backend="tokenizers"), tmp_path)
    assert not made_plans(made, config(tokenizer_backend="fastokens"), tmp_path)
    assert not made_plans(made, config(seed=3), tmp_path)


def renamed(name: str, was: str | None) -> Config:
    """`config` with its source a under another name."""
    values = config().model_dump(mode="json")
    values["sources"][name] = {**values["sources"].pop("a"), "was": was}
    values["mixture"]["schedule"] = [{"step": 0, "weights": {name: 1, "b": 1}}]
    return Config.model_validate(values)


def test_a_renamed_source_is_the_same_by_its_first_name(tmp_path: Path) -> None:
    a, c, d = (read_digest(one, tmp_path) for one in (config(), renamed("c", "a"), renamed("d", "a")))
    assert c["was/c"] == "a"
    assert c["source/c"] == a["source/a"]
    assert renamings(a, c) == {"a": "c", "b": "b"}
    assert renamings(c, d) == {"c": "d", "b": "b"}
    assert renamings(d, a) == {"d": "a", "b": "b"}
    assert compare(c, c) == []


def test_a_first_name_that_is_left_out_or_another_is_a_change(tmp_path: Path) -> None:
    before = read_digest(renamed("c", "a"), tmp_path)
    assert compare(before, read_digest(renamed("c", None), tmp_path)) == ["sources.c.was"]
    assert compare(before, read_digest(renamed("c", "x"), tmp_path)) == ["sources.c.was"]
    assert renamings(before, read_digest(renamed("c", None), tmp_path)) == {"b": "b"}
