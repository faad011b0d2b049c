"""docs/quarantine.md, run: its job, its commands in their order, and its list of reasons."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from dataloader_client import DataServiceLoader
from dataloader_svc.errors import Reason
from dataloader_svc.testing.tokenizer import make_tokenizer
from real_job import REPO, run_cli, serve, words

PAGE = (REPO / "docs" / "quarantine.md").read_text()
EXAMPLE = PAGE.partition("## A repair, step by step")[2].partition("\n## ")[0]
ROWS, BAD = 20, (3, 7)


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", EXAMPLE, re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def plain_words(text: str) -> list[list[str]]:
    """Lines without the widths of columns."""
    return [line.split() for line in text.strip().splitlines()]


def write_notes(folder: Path, *, mended: bool) -> None:
    lines = [json.dumps({"text": words(number, 6)}) for number in range(ROWS)]
    if not mended:
        lines[3], lines[7] = '{"text": "no comma" "id": 3}', '{"text": null}'
    else:
        lines[3] = json.dumps({"text": "mended, and longer than it was before: " + words(3, 20)})
    (folder / "notes.jsonl").write_text("\n".join(lines) + "\n")


def read(address: str, state: dict | None) -> tuple[list[int], dict]:
    """Positions up to the end of the data, and the state there."""
    with DataServiceLoader(address, dp_rank=0, dp_size=1) as loader:
        if state is not None:
            loader.load_state_dict(state)
        positions = [span.position for batch in loader for span in batch.manifest.spans()]
        return positions, loader.state_dict()


def test_the_example(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "tokenizer")
    (yaml,) = blocks("yaml")
    job = tmp_path / "notes.yaml"
    job.write_text(yaml)
    write_notes(tmp_path, mended=False)
    with serve(job) as service:
        first, state = read(service.address, None)
    assert len(first) == len(set(first)) == ROWS - len(BAD)

    plain = blocks("")
    commands = [shlex.split(text)[1:] for text in plain if text.startswith("dataloader-svc ")]
    shown = [text for text in plain if not text.startswith("dataloader-svc ")]
    assert [command[1] for command in commands] == ["notes.yaml", "export", "readmit", "readmit"]
    out = []
    for command in commands:
        if command[1] == "readmit":
            write_notes(tmp_path, mended=True)
        in_place = [
            str(tmp_path / word) if re.search(r"\.(yaml|jsonl)$|^bad-rows$", word) else word
            for word in command
        ]
        done = run_cli(*in_place)
        assert done.returncode == 0, done.stderr
        out.append(done.stdout)
    for printed, text in zip((out[0], out[3]), shown, strict=True):
        assert plain_words(printed.replace(str(tmp_path), "/data")) == plain_words(text)
    assert (tmp_path / "bad.jsonl").read_text().count("\n") == len(BAD)
    assert len(list((tmp_path / "bad-rows").iterdir())) == len(BAD)
    assert "nothing was done" in out[2]

    with serve(job) as service:
        again, _ = read(service.address, state)
    assert sorted(first + again) == list(range(ROWS))
    assert run_cli("quarantine", job).stdout.count("skipped; readmitted in step 5") == len(BAD)


def test_every_reason_is_explained() -> None:
    table = PAGE.partition("\n## Reasons\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(reason.value for reason in Reason if reason != Reason.FILTERED)
