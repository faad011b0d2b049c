"""`check` on broken configurations: each problem with its line and field, all at once, no traceback."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dataloader_svc.testing.data import TinyRow, png, write_source
from real_job import job_values, run_cli, write_config

Values = dict[str, Any]


class Broken(NamedTuple):
    """A way to break the tiny job, and what must be said: the field, and a part of the sentence.

    A field is its keys in the YAML; "-" is the first item of a list.
    """

    name: str
    change: Callable[[Values, Path], object]
    expected: tuple[tuple[tuple[str, ...], str], ...]


def source(values: Values, name: str = "notes") -> Values:
    found: Values = values["sources"][name]
    return found


def weights(values: Values, **changes: object) -> None:
    values["mixture"]["schedule"][0].update(changes)


def only(values: Values, folder: Path, rows: list[TinyRow], **settings: Any) -> None:
    """One source that holds `rows`."""
    made = write_source(folder / "rows", "jsonl", rows, **settings)
    values["sources"] = {"notes": made.model_dump(exclude_unset=True, exclude_none=True)}
    values["mixture"] = {"schedule": [{"step": 0, "notes": 1.0}]}


def garbage_shard(values: Values, folder: Path) -> None:
    shard = folder / "garbage.parquet"
    shard.write_bytes(os.urandom(4096))
    pages = source(values, "pages")
    pages["path"] = [pages["path"], str(shard)]


def all_garbage(values: Values, folder: Path) -> None:
    (folder / "garbage.tar").write_bytes(b"\x01" * 4096)
    source(values, "photos")["path"] = str(folder / "garbage.tar")


def file_of(name: str, content: str) -> Callable[[Values, Path], None]:
    def change(values: Values, folder: Path) -> None:
        (folder / name).write_text(content)
        values["tokenizer"] = str(folder / name)

    return change


def empty_source(values: Values, folder: Path) -> None:
    (folder / "empty.jsonl").write_text("\n\n")
    source(values)["path"] = str(folder / "empty.jsonl")


def large_pictures(values: Values, folder: Path) -> None:
    rows = [TinyRow(text=f"{i}", image=png(280, 280, (i, i, i))) for i in range(3)]  # 100 tokens each
    only(values, folder, rows)
    values |= {"sequence_length": 64, "images": {"min_pixels": 784, "max_pixels": 784 * 100}}


NOTES = ("sources", "notes")
ENTRY = ("mixture", "schedule", "-")
BROKEN = (
    Broken(
        "missing path",
        lambda values, _: source(values).update(path="/nowhere/*.jsonl"),
        (((*NOTES, "path"), "folder /nowhere does not exist"),),
    ),
    Broken(
        "one shard of several is garbage", garbage_shard, ((("sources", "pages", "path"), "garbage.parquet"),)
    ),
    Broken("the only shard is garbage", all_garbage, ((("sources", "photos"), "garbage.tar"),)),
    Broken(
        "a field that no row has",
        lambda values, _: source(values).update(text="body"),
        ((NOTES, "no row has the mapped fields"),),
    ),
    Broken(
        "a column that the files lack",
        lambda values, _: source(values, "pages").update(text="contents"),
        ((("sources", "pages"), "did you mean 'content'"),),
    ),
    Broken(
        "rows that are not text",
        lambda values, _: source(values).update(text="id"),
        ((NOTES, "no row can be used"),),
    ),
    Broken(
        "negative weight",
        lambda values, _: weights(values, notes=-0.5),
        (((*ENTRY, "notes"), "greater than or equal to 0 (found -0.5)"),),
    ),
    Broken(
        "weight that is not a number",
        lambda values, _: weights(values, notes=float("nan")),
        (((*ENTRY, "notes"), "finite number (found nan)"),),
    ),
    Broken(
        "infinite weight",
        lambda values, _: weights(values, notes=float("inf")),
        (((*ENTRY, "notes"), "finite number (found inf)"),),
    ),
    Broken(
        "no weight above zero",
        lambda values, _: weights(values, notes=0, pages=0, photos=0),
        ((ENTRY, "at least one weight"),),
    ),
    Broken(
        "unknown source in the schedule",
        lambda values, _: weights(values, pgaes=0.1),
        (((*ENTRY, "pgaes"), "did you mean 'pages'"),),
    ),
    Broken(
        "source without a weight",
        lambda values, _: weights(values, photos=0),
        ((("sources", "photos"), "weight above zero"),),
    ),
    Broken(
        "sequence below the smallest picture",
        lambda values, _: values.update(sequence_length=8, images={"min_pixels": 784 * 9}),
        ((("sequence_length",), "9 tokens of the smallest picture"),),
    ),
    Broken(
        "sequence below every picture there is",
        large_pictures,
        ((("sequence_length",), "below the tokens of every picture"),),
    ),
    Broken(
        "a mesh that does not divide the batch",
        lambda values, _: values.update(mesh={"dp": 3}),
        ((("mesh", "dp"), "dp that fits: 1, 2, 4, 8"),),
    ),
    Broken(
        "a sequence that cp does not divide",
        lambda values, _: values.update(mesh={"cp": 3}),
        ((("mesh", "cp"), "not a multiple of 2 * cp = 6"),),
    ),
    Broken(
        "a batch that is no multiple of the sequence",
        lambda values, _: values.update(global_batch={"tokens": 1000}),
        ((("global_batch", "tokens"), "not a multiple of sequence_length 256"),),
    ),
    Broken("an empty source", empty_source, ((NOTES, "no rows"),)),
    Broken(
        "unknown format",
        lambda values, _: source(values).update(format="jsnol"),
        (((*NOTES, "format"), "did you mean 'jsonl'"),),
    ),
    Broken(
        "unknown packer and balancer",
        lambda values, _: values.update(strategy={"pack": "best_fti", "balance": "ltp"}),
        ((("strategy", "pack"), "did you mean 'best_fit'"), (("strategy", "balance"), "did you mean 'lpt'")),
    ),
    Broken(
        "missing tokenizer",
        lambda values, _: values.update(tokenizer="nowhere.json"),
        ((("tokenizer",), "No such file"),),
    ),
    Broken("tokenizer that is not JSON", file_of("t.json", "no { json"), ((("tokenizer",), "not JSON"),)),
    Broken(
        "JSON that is no tokenizer", file_of("t.json", '{"a": 1}'), ((("tokenizer",), "no tokenizers file"),)
    ),
    Broken(
        "tokens that the vocabulary lacks",
        lambda values, _: values.update(media_tokens={"image": "<|imgae_pad|>"}, eos="<|eos|>"),
        ((("media_tokens", "image"), "did you mean '<|image_pad|>'"), (("eos",), "'<|eos|>' is not in")),
    ),
    Broken(
        "pictures without a token for them",
        lambda values, _: values.pop("media_tokens"),
        ((("media_tokens", "image"), "name the vocabulary entry"),),
    ),
    Broken(
        "an environment variable that is not set",
        lambda values, _: source(values).update(path="${NO_SUCH_FOLDER}/*.jsonl"),
        (((*NOTES, "path"), "NO_SUCH_FOLDER is not set"),),
    ),
    Broken(
        "unknown fields",
        lambda values, _: (values.update(sequence_lenght=3), source(values).update(pth="x")),
        (
            (("sequence_lenght",), "did you mean 'sequence_length'"),
            ((*NOTES, "pth"), "did you mean 'path'"),
        ),
    ),
    Broken(
        "documents that may not be too long",
        lambda values, _: source(values, "pages").update(too_long="error"),
        ((("sources", "pages", "too_long"), "longer than sequence_length"),),
    ),
)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_configuration(broken: Broken, data: Path, tmp_path: Path) -> None:
    values = job_values(data)
    broken.change(values, tmp_path)
    config = write_config(tmp_path / "job.yaml", values)
    result = run_cli("check", config)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    found = problem_lines(result.stdout, config)
    assert len(found) == len(broken.expected), result.stdout
    for keys, part in broken.expected:
        place = line_of(config, keys), ".".join("0" if key == "-" else key for key in keys)
        assert any(part in text and place == (line, field) for line, field, text in found), (place, found)


def test_all_problems_at_once(data: Path, tmp_path: Path) -> None:
    """Fields, what is between them, paths, tokenizer and rows: one run tells all."""
    values = job_values(data, seed=-3, mesh={"dp": 3}, strategy={"pack": "none"}, eos="<|none|>")
    source(values, "pages")["path"] = "/nowhere/*.parquet"
    source(values)["txet"] = "x"
    garbage = tmp_path / "garbage.tar"
    garbage.write_bytes(b"\x01" * 4096)
    source(values, "photos")["path"] = [source(values, "photos")["path"], str(garbage)]
    config = write_config(tmp_path / "job.yaml", values)
    text = run_cli("check", config)
    assert text.returncode == 1
    fields = sorted(field for _, field, _ in problem_lines(text.stdout, config))
    assert fields == [
        "eos",
        "mesh.dp",
        "seed",
        "sources.notes.txet",
        "sources.pages.path",
        "sources.photos.path",
        "strategy.pack",
    ]
    as_json = run_cli("check", config, "--json")
    assert as_json.returncode == 1
    report = json.loads(as_json.stdout)
    assert report["ok"] is False
    assert report["problems"] == re.findall(rf"^{re.escape(str(config))}:.*$", text.stdout, re.MULTILINE)
    # `serve` stops at what can be known without reading the data.
    served = run_cli("serve", config, "--address", "127.0.0.1:0")
    assert served.returncode == 2
    assert served.stdout == ""
    assert {line for line in report["problems"] if "garbage.tar" not in line} == {
        line.removeprefix("error: ") for line in served.stderr.splitlines()
    }
    assert not (tmp_path / ".dataloader-svc").exists()


def test_broken_yaml_and_no_yaml(tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("job: x\nsources: {a: [\nseed: 1\n")
    for text, place in (
        (config.read_text(), f"{config}:"),
        ("- a\n- b\n", f"{config}:1: "),
        ("", str(config)),
    ):
        config.write_text(text)
        result = run_cli("check", config)
        assert result.returncode == 1
        assert place in result.stdout
        assert "Traceback" not in result.stderr
    missing = run_cli("check", tmp_path / "none.yaml")
    assert missing.returncode == 1
    assert "none.yaml: can't be read: No such file or directory" in missing.stdout


def test_a_good_one(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    text = run_cli("check", config, COLUMNS="80")
    assert text.returncode == 0, text.stdout + text.stderr
    assert text.stdout.rstrip().endswith("no problems")
    assert max(map(len, text.stdout.splitlines())) <= 80
    assert "…" not in text.stdout
    report = json.loads(run_cli("check", config, "--json").stdout)
    assert report["ok"] is True
    rows = {
        name: (found["rows"], found["rows_read"], found["media"]) for name, found in report["sources"].items()
    }
    assert rows == {"notes": (120, 120, 0), "pages": (60, 60, 0), "photos": (48, 48, 48)}
    for name, found in report["sources"].items():
        tokens = found["tokens"]
        assert 0 < tokens["p50"] <= tokens["p99"] <= tokens["max"]
        assert found["tokens_per_epoch"] == pytest.approx(tokens["mean"] * found["rows"], rel=1e-3)
        (entry,) = found["mixture"]
        share = {"notes": 0.4, "pages": 0.4, "photos": 0.2}[name]
        assert entry["share"] == pytest.approx(share)
        assert entry["steps_per_epoch"] == pytest.approx(found["tokens_per_epoch"] / (share * 8 * 256))


def test_bad_rows_below_the_limit_are_told_and_no_problem(data: Path, tmp_path: Path) -> None:
    values = job_values(data)
    only(values, tmp_path, [TinyRow(text=f"{i} is fine") for i in range(100)])
    shard = next((tmp_path / "rows").glob("*.jsonl"))
    with shard.open("a") as file:
        file.write('{"text": 3}\n{"text": ""}\n{broken\n')
    result = run_cli("check", write_config(tmp_path / "job.yaml", values))
    assert result.returncode == 0, result.stdout
    assert "will be quarantined: " in result.stdout
    assert all(f"1 {reason}" in result.stdout for reason in ("wrong_type", "empty_text", "bad_record"))


def problem_lines(text: str, config: Path) -> list[tuple[int, str, str]]:
    """(line, field, sentence) of each problem printed."""
    found = re.findall(rf"^{re.escape(str(config))}:(\d+): ([\w.]+): (.*(?:\n  .*)*)$", text, re.MULTILINE)
    return [(int(number), field, sentence) for number, field, sentence in found]


def line_of(config: Path, keys: tuple[str, ...]) -> int:
    """Line of the innermost of `keys` that the file has, found by text alone, each below the one before."""
    lines = config.read_text().splitlines()
    at = -1
    for key in keys:
        rest = range(at + 1, len(lines))
        pattern = r"\s*- " if key == "-" else rf"[\s-]*{re.escape(key)}:"
        found = next((n for n in rest if re.match(pattern, lines[n])), None)
        if found is None:
            break
        at = found
    return max(at, 0) + 1


def test_the_tokenizer_that_a_job_would_use_and_why(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", job_values(data))
    decided = json.loads(run_cli("check", config, "--json").stdout)["tokenizer"]
    assert decided["library"] == "fastokens"
    assert decided["why"].startswith("its ids are those of tokenizers on ")
    assert decided["why"].endswith(" hard strings and on the first block of every source")
    assert f"tokenizer: fastokens: {decided['why']}" in run_cli("check", config).stdout.splitlines()

    named = write_config(tmp_path / "named.yaml", job_values(data, tokenizer_backend="tokenizers"))
    assert "tokenizer: tokenizers: as tokenizer_backend says" in run_cli("check", named).stdout.splitlines()

    # Nothing is decided before the sources can be opened.
    broken = job_values(data)
    broken["sources"]["notes"]["path"] = "nowhere.jsonl"
    done = run_cli("check", write_config(tmp_path / "broken.yaml", broken), "--json")
    assert json.loads(done.stdout)["tokenizer"] is None


def test_blocks_that_do_not_fit_together_in_the_loaders(data: Path, tmp_path: Path) -> None:
    values = job_values(data)
    found = json.loads(run_cli("check", write_config(tmp_path / "job.yaml", values), "--json").stdout)
    sizes = [source["block_bytes"] for source in found["sources"].values()]
    assert min(sizes) > 0
    assert found["notes"] == []

    small = values | {"loader": {"count": 1, "memory": sum(sizes) - 1}}
    found = json.loads(run_cli("check", write_config(tmp_path / "small.yaml", small), "--json").stdout)
    (note,) = found["notes"]
    assert found["ok"]
    assert note.startswith(f"loader: a block of each of {len(sizes)} sources takes ")
    assert note.endswith("raise one of them, or divide shuffle.block of the sources by 2")


def test_sources_that_expand_to_more_than_is_kept(data: Path, tmp_path: Path) -> None:
    plain = b"".join(path.read_bytes() for path in sorted((data / "notes").glob("*.jsonl")))
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(plain))
    values = job_values(data)
    notes = values["sources"]["notes"]
    del values["index_cache"]
    values["sources"] = {
        name: {**notes, "path": f"{tmp_path}/{name}.jsonl.gz"} for name in ("one", "two")
    } | {"plain": notes}
    values["mixture"] = {"schedule": [{"step": 0, "one": 1, "two": 1, "plain": 1}]}
    fits = {"scratch": str(tmp_path / "scratch"), "scratch_bytes": 2 * len(plain)}
    found = json.loads(
        run_cli("check", write_config(tmp_path / "fits.yaml", values | {"storage": fits}), "--json").stdout
    )
    expanded = {name: source["expanded_bytes"] for name, source in found["sources"].items()}
    assert expanded == {"one": len(plain), "two": len(plain), "plain": 0}
    assert found["notes"] == []

    small = fits | {"scratch_bytes": 2 * len(plain) - 1}
    done = run_cli("check", write_config(tmp_path / "small.yaml", values | {"storage": small}))
    assert done.returncode == 0, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("note: storage: ")]
    assert "files will be expanded again and again while they are read" in line
    assert re.search(r"\(one \S+ GiB, two \S+ GiB\)", line)
