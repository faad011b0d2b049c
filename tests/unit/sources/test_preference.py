"""The sides of preference pairs in every format and shape. What of them is the prompt: test_pairs.py."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_svc.config.schema import Source
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SourceReader
from dataloader_svc.sources.fields import fields_of, role_value
from dataloader_svc.sources.preference import PAIR_ROLES, pair_value, turns_value
from dataloader_svc.testing.writers.mds import write_mds

from .test_any_value import VALUES

TEXTS: list[dict[str, Any]] = [
    {"prompt": "p", "chosen": '["not json"]', "rejected": "{no: json}"},
    {"prompt": "", "chosen": "5", "rejected": 'a,\n"b" 猫'},
]
CHATS: list[dict[str, Any]] = [
    {
        "prompt": [{"role": "user", "content": text}],
        "chosen": [{"role": "assistant", "content": "yes"}],
        "rejected": [{"role": "assistant", "content": "no"}, {"role": "user", "content": text}],
    }
    for text in ("hi", "猫?")
]


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "x.jsonl"


def parquet(folder: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet")
    return "x.parquet"


def manifest(folder: Path, rows: list[dict[str, Any]]) -> str:
    with (folder / "x.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(PAIR_ROLES)
        for row in rows:
            cells = (row[role] for role in PAIR_ROLES)
            writer.writerow([cell if isinstance(cell, str) else json.dumps(cell) for cell in cells])
    return "x.csv"


def mds(folder: Path, rows: list[dict[str, Any]]) -> str:
    encoding = "str" if isinstance(rows[0]["chosen"], str) else "json"
    cells = [
        [row[role].encode() if encoding == "str" else json.dumps(row[role]).encode() for role in PAIR_ROLES]
        for row in rows
    ]
    write_mds(folder / "x.mds", dict.fromkeys(PAIR_ROLES, (encoding, None)), cells)
    return "."


def webdataset(folder: Path, rows: list[dict[str, Any]]) -> str:
    """A member a field: text, or JSON."""
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number, row in enumerate(rows):
            for role in PAIR_ROLES:
                plain = isinstance(row[role], str)
                data = row[role].encode() if plain else json.dumps(row[role]).encode()
                member = tarfile.TarInfo(f"{number}.{role}.{'txt' if plain else 'json'}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return "x.tar"


def webdataset_in_one(folder: Path, rows: list[dict[str, Any]]) -> str:
    """All fields in one JSON member."""
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number, row in enumerate(rows):
            data = json.dumps(row).encode()
            member = tarfile.TarInfo(f"{number}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return "x.tar"


def source(form: str, path: str, style: str, name: str = "{}") -> Source:
    fields = {role: name.format(role) for role in PAIR_ROLES}
    values = {"format": form, "path": path, "preference": {"style": style, **fields}, "shuffle": False}
    return Source.model_validate(values)


@pytest.mark.parametrize("style", ["text", "messages"])
@pytest.mark.parametrize("write", [jsonl, parquet, manifest, mds, webdataset, webdataset_in_one])
def test_every_format(write: Callable[[Path, list[dict[str, Any]]], str], style: str, tmp_path: Path) -> None:
    rows = TEXTS if style == "text" else CHATS
    path = write(tmp_path, rows)
    suffix = "txt" if style == "text" else "json"
    name = {"webdataset": f"{{}}.{suffix}", "webdataset_in_one": "json.{}"}.get(write.__name__, "{}")
    reader = SourceReader("s", source(write.__name__.partition("_")[0], path, style, name), tmp_path, None, 0)
    block = reader.read_block(BlockId("s", 0, 0))
    assert not block.bad
    assert [{role: block.columns[role][row] for role in PAIR_ROLES} for row in range(2)] == rows


@pytest.mark.parametrize(
    ("role", "value", "messages"),
    [
        ("prompt", "hi", [{"role": "user", "content": "hi"}]),
        ("chosen", "yo", [{"role": "assistant", "content": "yo"}]),
        ("rejected", {"from": "gpt", "value": "no"}, [{"role": "assistant", "content": "no"}]),
        ("chosen", {"role": "assistant", "content": "yo"}, [{"role": "assistant", "content": "yo"}]),
        (
            "prompt",
            {"messages": [{"role": "user", "content": "hi"}], "tools": []},
            [{"role": "user", "content": "hi"}],
        ),
    ],
)
def test_shapes_of_messages(role: str, value: object, messages: list[dict[str, str]]) -> None:
    assert turns_value(value, "field", role) == messages
    assert turns_value(messages, "field", role) == messages


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (None, Reason.MISSING_FIELD, "field 'x' is null"),
        ([], Reason.BAD_MESSAGES, "has no messages"),
        (7, Reason.WRONG_TYPE, "must be a list of"),
        ({"messages": "hi"}, Reason.WRONG_TYPE, "'x.messages' must be a list"),
        ({"role": "user"}, Reason.BAD_MESSAGES, r"x\[0\].content"),
    ],
)
def test_what_is_no_side(value: object, reason: Reason, words: str) -> None:
    with pytest.raises(BadSample, match=words) as caught:
        turns_value(value, "x", "chosen")
    assert caught.value.reason == reason


@pytest.mark.parametrize("style", ["text", "messages"])
@pytest.mark.parametrize("role", PAIR_ROLES)
@given(value=VALUES | st.dictionaries(st.just("messages"), VALUES))
def test_a_side_or_a_bad_sample(role: str, style: str, value: Any) -> None:
    try:
        found = role_value(fields_of(source("jsonl", "x", style)), role, value, "x")
    except BadSample:
        return
    if style == "text":
        assert isinstance(found, str)
    else:
        assert found
        assert all({"role", "content"} <= message.keys() for message in found)
    assert pair_value(found, "x") == found, "the normal form stays as it is"
