"""`preview` on real processes: what it shows is what stands in the rows that it names."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from dataloader_svc.testing.tokenizer import EOS
from real_job import job_values, run_cli, write_config

SEQUENCES, LENGTH = 8, 256


@pytest.fixture(scope="module")
def config(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("preview") / "mixture.yaml", job_values(data))


@pytest.fixture(scope="module")
def shown(config: Path) -> tuple[dict[str, Any], str]:
    """What `--json` says of all sequences of step 2, and the page."""
    page = config.parent / "step.html"
    result = run_cli("preview", config, "--step", 2, "-n", SEQUENCES, "--html", page, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), page.read_text()


def documents(value: dict[str, Any]) -> list[dict[str, Any]]:
    return [document for sequence in value["sequences"] for document in sequence["documents"]]


def text_of_row(shard: str, row: int) -> str:
    """Read the row without any code of the service."""
    path = Path(shard)
    if path.suffix == ".jsonl":
        text: str = json.loads(path.read_text().splitlines()[row])["text"]
        return text
    return str(pq.read_table(path)["content"][row].as_py())


def test_the_step_is_whole(shown: tuple[dict[str, Any], str]) -> None:
    value, _ = shown
    assert (value["job"], value["step"], len(value["sequences"])) == ("tiny", 2, SEQUENCES)
    for sequence in value["sequences"]:
        assert sequence["tokens"] == sum(document["tokens"] for document in sequence["documents"]) <= LENGTH
        assert sequence["cost"]["llm"] > 0
    names = [(d["source"], d["epoch"], d["position"], d["start"]) for d in documents(value)]
    assert len(names) == len(set(names)) == value["documents"]
    assert {d["source"] for d in documents(value)} == {"notes", "pages", "photos"}
    assert sum(source["tokens"] for source in value["sources"].values()) == value["tokens"]
    assert value["sources"]["photos"]["target"] == pytest.approx(0.2)


def test_texts_are_those_of_the_rows_named(shown: tuple[dict[str, Any], str]) -> None:
    parts = defaultdict(dict)
    for document in documents(shown[0]):
        if document["source"] != "photos":
            parts[document["shard"], document["row"]][document["start"]] = document
    whole = 0
    for (shard, row), pieces in parts.items():
        ordered = [pieces[start] for start in sorted(pieces)]
        expected = text_of_row(shard, row) + EOS
        texts = [piece["text"] for piece in ordered]
        if ordered[0]["start"] == 0 and texts[-1].endswith(EOS) and "\ufffd" not in "".join(texts):
            assert "".join(texts) == expected
            whole += 1
        for piece in ordered:
            # A part that begins or ends inside a character shows half of it as a replacement mark.
            assert piece["text"].strip("\ufffd") in expected
            assert piece["targets"] == piece["tokens"] - 1
    assert whole >= 10


def test_pictures_have_the_size_and_colour_of_the_rows_named(shown: tuple[dict[str, Any], str]) -> None:
    photos = [document for document in documents(shown[0]) if document["source"] == "photos"]
    assert photos
    number = []
    for photo in photos:
        match = re.fullmatch(r"\[image (\d+)x(\d+): (\d+) tokens\](\d+): .*", photo["text"])
        assert match, photo["text"]
        width, height, tokens, i = map(int, match.groups())
        assert (width, height) == (28 * (1 + i % 3), 28 * (1 + i // 3 % 3))
        assert tokens == width * height // 28**2
        assert photo["patches"] == 4 * tokens
        number.append(i)
    uris = re.findall(r'<img src="data:image/\w+;base64,([^"]+)"', shown[1])
    drawn = [Image.open(io.BytesIO(base64.b64decode(uri))).convert("RGB").getpixel((5, 5)) for uri in uris]
    assert sorted(drawn) == sorted((5 * i % 256, 100, 255 - 5 * i % 256) for i in number)


def test_the_page_stands_alone(shown: tuple[dict[str, Any], str]) -> None:
    page = shown[1]
    assert not re.search(r"""(?:src|href)=(?!"data:|"#)""", page)
    assert page.count('<section class="sequence"') == SEQUENCES
    assert "tiny <span>step 2</span>" in page


def test_the_table_shows_some_sequences_of_the_same_step(
    config: Path, shown: tuple[dict[str, Any], str]
) -> None:
    result = run_cli("preview", config, "--step", 2, "-n", 2, "--documents", 3)
    assert result.returncode == 0, result.stderr
    assert shown[0]["digest"][:12] in result.stdout
    assert re.findall(r"^sequence (\d+):", result.stdout, re.MULTILINE) == ["0", "7"]
    assert "2 of 8 sequences" in result.stdout
    assert "\x1b" not in result.stdout
    first = shown[0]["sequences"][0]
    assert f"{first['tokens']} of {LENGTH} tokens" in result.stdout
    # A state store of its own, gone again: the job's is neither made nor used.
    assert not list(config.parent.rglob("*.db"))


def test_a_step_behind_the_end_of_the_data(data: Path, tmp_path: Path) -> None:
    mixture = job_values(data)["mixture"] | {"exhausted": "stop"}
    config = write_config(tmp_path / "mixture.yaml", job_values(data, mixture=mixture))
    result = run_cli("preview", config, "--step", 500)
    assert result.returncode == 3
    assert "the data ends before step 500" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_page_that_cannot_be_written_is_told_at_once(config: Path) -> None:
    result = run_cli("preview", config, "--html", config.parent / "nowhere" / "page.html")
    assert result.returncode == 2
    assert "there is no folder" in result.stderr
