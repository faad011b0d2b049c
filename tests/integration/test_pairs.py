"""Preference pairs through real processes: each whole on every mesh and in both layouts, with what a trainer
needs to tell its documents apart. The oracle reads the files itself."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataloader_client import Batch, DataServiceLoader, Mesh
from dataloader_svc.testing.data import png
from dataloader_svc.testing.tokenizer import EOS, IMAGE
from dataloader_svc.transforms.tokenizers import Tokenizer
from reading import take_step
from real_job import job_values, run_cli, serve, words, write_config

TEXTS, CHATS = 60, 24


def write_pairs(folder: Path) -> None:
    """`texts.jsonl` of strings with a prompt, `chats.jsonl` of messages with a picture every other time."""
    texts = [
        {
            "prompt": words(i, 3 + i % 11, seed=3),
            "chosen": f" yes {words(i, 2 + i % 7, seed=4)}",
            "rejected": f" no {words(i, 1 + i % 17, seed=5)}",
        }
        for i in range(TEXTS)
    ]
    chats = [
        {
            "prompt": ("<image>" if i % 2 else "") + f"chat {i}?",
            "chosen": f"yes {i}",
            "rejected": [{"from": "gpt", "value": f"no {i}"}],
            **({"image": f"{i % 3}.png"} if i % 2 else {}),
        }
        for i in range(CHATS)
    ]
    for n in range(3):
        (folder / f"{n}.png").write_bytes(png(28 * (1 + n), 56, (n, 5, 5)))
    for name, rows in (("texts", texts), ("chats", chats)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def pairs_job(data: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """Both kinds of pairs beside documents that are none."""
    write_pairs(folder)
    values = job_values(data)
    small = {"format": "jsonl", "extent": 1024, "shuffle": {"block": 2048}}
    values["sources"] = {
        "notes": values["sources"]["notes"],
        "texts": {**small, "path": "texts.jsonl", "preference": {"style": "text", "prompt": "prompt"}},
        "chats": {
            **small,
            "path": "chats.jsonl",
            "image": "image",
            "preference": {"style": "messages", "prompt": "prompt"},
        },
    }
    values["mixture"] = {
        "unit": "samples",
        "exhausted": "drop",
        "schedule": [{"step": 0, "notes": 0.3, "texts": 0.5, "chats": 0.2}],
    }
    return values | {"global_batch": {"sequences": 4}, "index_cache": str(folder / "index")} | changes


def expected(folder: Path, images: dict[str, int]) -> set[tuple[str, str, str, str]]:
    """(chosen, what is learnt of it, rejected, what is learnt of it) of every row, as text."""
    found = set()
    for line in (folder / "texts.jsonl").read_text().splitlines():
        row = json.loads(line)
        learnt = [row[side] + EOS for side in ("chosen", "rejected")]
        found.add((row["prompt"] + learnt[0], learnt[0], row["prompt"] + learnt[1], learnt[1]))
    for line in (folder / "chats.jsonl").read_text().splitlines():
        row = json.loads(line)
        asked = row["prompt"].replace("<image>", IMAGE * images.get(row.get("image", ""), 0))
        head = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        learnt = [answer + "<|im_end|>" for answer in (row["chosen"], row["rejected"][0]["value"])]
        found.add((f"{head}{learnt[0]}\n{EOS}", learnt[0], f"{head}{learnt[1]}\n{EOS}", learnt[1]))
    return found


def pairs_of(ranks: list[Batch], tokenizer: Tokenizer) -> list[tuple[str, ...]]:
    """The pairs of a microbatch, of all its cp ranks' tokens put together by `pair_ids` alone."""
    tokens: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for batch in ranks:
        a = batch.numpy
        assert a["pair_ids"].shape == a["input_ids"].shape
        assert np.array_equal(a["pair_bounds"], ranks[0].numpy["pair_bounds"]), "the same on every cp rank"
        places = a["cp_index"] if "cp_index" in a else np.arange(a["input_ids"].size)
        columns = (a["pair_ids"], places, a["input_ids"], a["labels"])
        for number, *token in zip(*(column.ravel().tolist() for column in columns), strict=True):
            tokens[number].append((token[0], token[1], token[2]))
    bounds = ranks[0].numpy["pair_bounds"].tolist()
    assert set(tokens) - {0} == set(range(1, 2 * len(bounds) + 1))
    pieces = {span.offset: span.length for span in ranks[0].manifest.spans()}
    found = []
    for pair, (start, middle, end) in enumerate(bounds):
        assert pieces[start] == end - start, "a pair is one span of the manifest"
        texts: list[str] = []
        for number, first, last in ((2 * pair + 1, start, middle), (2 * pair + 2, middle, end)):
            document = sorted(tokens[number])
            assert [place for place, _, _ in document] == list(range(first, last))
            ids, labels = [token for _, token, _ in document], [label for _, _, label in document]
            learnt = [label for label in labels if label != -100]
            assert all(label in (-100, after) for label, after in zip(labels, ids[1:], strict=False))
            assert labels[-1] == -100, "nothing is predicted from one document in the next"
            texts += [tokenizer.decode(ids), tokenizer.decode(learnt)]
        if "cu_seqlens" in ranks[0].numpy:
            assert {start, middle, end} <= set(ranks[0].numpy["cu_seqlens"].tolist())
        found.append(tuple(texts))
    return found


def read_all(address: str, mesh: Mesh, tokenizer: Tokenizer) -> list[tuple[str, ...]]:
    """The pairs of all steps on a mesh; their number is what each batch says of its step."""
    found: list[tuple[str, ...]] = []
    with contextlib.ExitStack() as stack:
        loaders = [
            stack.enter_context(DataServiceLoader(address, mesh=mesh, rank=rank))
            for rank in range(mesh.world_size)
        ]
        while any(steps := [take_step(loader) for loader in loaders]):
            groups: dict[tuple[int, int], list[Batch]] = defaultdict(list)
            for loader, batches in zip(loaders, steps, strict=True):
                for batch in batches:
                    groups[loader.coords.dp, batch.microbatch].append(batch)
            pairs = [pairs_of(ranks, tokenizer) for ranks in groups.values()]
            count = sum(map(len, pairs))
            assert {batch.num_pairs for batches in steps for batch in batches} == {count}
            found += [pair for group in pairs for pair in group]
    return found


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_every_pair_once_and_whole_on_every_mesh(data: Path, tmp_path: Path, layout: str) -> None:
    config = write_config(tmp_path / "job.yaml", pairs_job(data, tmp_path, layout=layout))
    tokenizer = Tokenizer.load(data / "tokenizer", "tokenizers")
    wanted = expected(tmp_path, {"0.png": 2, "1.png": 4, "2.png": 6})
    assert len(wanted) == TEXTS + CHATS
    with serve(config) as served:
        for mesh in (Mesh(dp=1), Mesh(dp=2, cp=2), Mesh(dp=1, cp=4)):
            found = read_all(served.address, mesh, tokenizer)
            assert len(found) == len(wanted), mesh
            assert set(found) == wanted, mesh


def test_audit_holds(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", pairs_job(data, tmp_path))
    meshes = ["--mesh", "dp=1", "--mesh", "dp=2", "--mesh", "dp=2,cp=2"]
    done = run_cli("audit", config, "--steps", 99, *meshes, "--json", timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(json.loads(done.stdout)["contracts"].values())


def test_steps_of_so_many_pairs_and_long_ones_shortened(data: Path, tmp_path: Path) -> None:
    """8 pairs a step, whatever their lengths; a sequence of 128 tokens holds both documents of each."""
    values = pairs_job(data, tmp_path, sequence_length=128, global_batch={"samples": 8})
    del values["sources"]["notes"], values["sources"]["chats"]
    values["mixture"]["schedule"] = [{"step": 0, "texts": 1}]
    tokenizer = Tokenizer.load(data / "tokenizer", "tokenizers")
    with serve(write_config(tmp_path / "job.yaml", values)) as served:
        found = read_all(served.address, Mesh(dp=2, cp=2), tokenizer)
    wanted, shortened = set(), 0
    for line in (tmp_path / "texts.jsonl").read_text().splitlines():
        row = json.loads(line)
        sides = [
            [
                token
                for text in (row["prompt"], row[side])
                for token in tokenizer.encode_batch([text])[0].tolist()
            ]
            for side in ("chosen", "rejected")
        ]
        sides = [[*ids, tokenizer.control[EOS]] for ids in sides]
        shortened += sum(map(len, sides)) > 128
        while sum(map(len, sides)) > 128:
            max(sides, key=len).pop()
        wanted.add(tuple(tokenizer.decode(ids) for ids in sides))
    assert 0 < shortened < TEXTS
    assert len(found) == TEXTS
    assert {(chosen, rejected) for chosen, _, rejected, _ in found} == wanted


def test_a_job_without_pairs_has_no_trace_of_them(data: Path, tmp_path: Path) -> None:
    with (
        serve(write_config(tmp_path / "job.yaml", job_values(data))) as served,
        DataServiceLoader(served.address) as loader,
    ):
        (batch, *_) = take_step(loader)
        assert batch.num_pairs == 0
        assert "pair_ids" not in batch
        with pytest.raises(KeyError, match="no source of this job has preference pairs"):
            batch["pair_ids"]
