"""Every problem of a configuration is found in one pass, on its line, with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataloader_svc.config.load import load_config
from dataloader_svc.errors import ConfigProblems

GOOD = """\
job: captioner
seed: 17
tokenizer: tokenizer.json
sequence_length: 8192
global_batch: {sequences: 64}
sources:
  web:      {format: parquet,    path: data/web/*.parquet, text: content}
  captions: {format: webdataset, path: "data/cap-{0000..0031}.tar", image: jpg, text: txt}
  clips: {format: jsonl, path: data/clips.jsonl, video: {field: file, fps: 2, max_frames: 32}, text: caption}
media_tokens: {image: "<|image|>", video: "<|video|>"}
mixture:
  unit: tokens
  schedule:
    - {step: 0,    web: 0.7, captions: 0.3}
    - {step: 2000, web: 0.5, captions: 0.4, clips: 0.1, ramp: linear}
  exhausted: repeat
strategy: {pack: best_fit, cost: {llm: {model: 7b}, encoder: {patches: 1.0}}, context_parallel: per_document}
mesh: {dp: 4, cp: 2}
engine: local
store: sqlite
"""


def problems(tmp_path: Path, text: str, **environ: str) -> list[str]:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(ConfigProblems) as caught:
        load_config(path, environ)
    prefix = f"{path}:"
    assert all(line.startswith(prefix) for line in caught.value.problems)
    return [line.removeprefix(prefix) for line in caught.value.problems]


def test_the_design_example_loads(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(GOOD)
    loaded = load_config(path)
    assert loaded.base_dir == tmp_path
    assert loaded.config.num_sequences == 64
    assert loaded.config.mixture.schedule[1].weights == {"web": 0.5, "captions": 0.4, "clips": 0.1}
    assert loaded.config.mixture.schedule[1].ramp == "linear"
    assert loaded.lines["sources", "captions", "image"] == 8
    assert (
        loaded.problem(("sources", "web", "path"), "no such file")
        == f"{path}:7: sources.web.path: no such file"
    )


def test_all_problems_at_once_each_on_its_line(tmp_path: Path) -> None:
    text = (
        GOOD.replace("seed: 17", "sed: 17")
        .replace("format: parquet,", "fromat: parquet,")
        .replace("unit: tokens", "unit: tokns")
        .replace("sequence_length: 8192", "sequence_length: many")
    )
    found = problems(tmp_path, text)
    assert [line.split(":")[0] for line in found] == ["2", "4", "7", "7", "12"]
    assert found[0].startswith("2: sed: unknown field; did you mean 'seed'?; allowed: bos,")
    assert "4: sequence_length: input should be a valid integer" in found[1]
    assert "(found 'many')" in found[1]
    assert {found[2].split(":")[1].strip(), found[3].split(":")[1].strip()} == {
        "sources.web.fromat",
        "sources.web.format",
    }
    assert "12: mixture.unit: input should be 'tokens' or 'samples' (found 'tokns')" in found[4]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "web: 0.7,",
            "web: -1,",
            "14: mixture.schedule.0.web: input should be greater than or equal to 0 (found -1)",
        ),
        (
            "web: 0.7,",
            "web: .nan,",
            "14: mixture.schedule.0.web: input should be a finite number (found nan)",
        ),
        ("web: 0.7, captions: 0.3", "web: 0, captions: 0", "at least one weight must be above zero"),
        (
            "web: 0.7,",
            "wbe: 0.7,",
            "14: mixture.schedule.0.wbe: no source is called 'wbe'; sources: captions,",
        ),
        ("step: 0, ", "step: 5, ", "schedule must begin at step 0 and rise; found steps [5, 2000]"),
        (", clips: 0.1", "", "9: sources.clips: no entry of mixture.schedule gives it a weight above zero"),
        ('video: "<|video|>"', "", "10: media_tokens.video: source 'clips' has it"),
        (
            "video: {field: file, fps: 2, max_frames: 32}",
            "audio: {field: file}",
            "10: media_tokens.audio: source 'clips' has it",
        ),
        (
            "sequence_length: 8192",
            "sequence_length: 3",
            "4: sequence_length: 3 is below the 4 tokens of the smallest",
        ),
        (
            "{sequences: 64}",
            "{sequences: 64, tokens: 10}",
            "5: global_batch: give exactly one of sequences, tokens and samples",
        ),
        (
            "{sequences: 64}",
            "{per_microbatch: 2}",
            "5: global_batch: give exactly one of sequences, tokens and samples",
        ),
        (
            "{sequences: 64}",
            "{tokens: 524288, samples: 512}",
            "5: global_batch: give exactly one of sequences, tokens and samples",
        ),
        ("{sequences: 64}", "{samples: 0}", "5: global_batch.samples: input should be greater than 0"),
        ("{sequences: 64}", "{smaples: 512}", "did you mean 'samples'?"),
        (
            "{sequences: 64}",
            "{tokens: 1000}",
            "5: global_batch.tokens: 1000 is not a multiple of sequence_length 8192",
        ),
        (
            "{sequences: 64}",
            "{sequences: 6, per_microbatch: 4}",
            "global_batch.per_microbatch: 4 does not divide 6",
        ),
        ("fps: 2,", "fps: 2, frames: 8,", "9: sources.clips.video: give one of fps, frames and keyframes"),
        ("text: content", "shuffle: {blok: 1MiB}, text: content", "did you mean 'block'?"),
        ("text: content", "shuffle: {block: 5 parsecs}, text: content", "expected a size such as 512MiB"),
        (", text: content", "", "found none"),
        ("job: captioner", "job: captioner\njob: again", "2: job: given twice (first on line 1)"),
        ("job: captioner", "job: [captioner", "not valid YAML"),
        ("seed: 17", "seed: ${SEED}", "2: seed: environment variable SEED is not set"),
    ],
)
def test_one_problem(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new))
    assert any(expected in line for line in found), found


def test_environment(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        GOOD.replace("seed: 17", "seed: ${SEED}").replace("data/clips.jsonl", '"${DATA:-data}/clips.jsonl"')
    )
    config = load_config(path, {"SEED": "23"}).config
    assert config.seed == 23
    assert config.sources["clips"].path == "data/clips.jsonl"


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match="can't be read: No such file"):
        load_config(tmp_path / "missing.yaml")
    assert "1: expected a mapping" in problems(tmp_path, "- a\n- b\n")[0]
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigProblems, match="not UTF-8"):
        load_config(tmp_path / "bytes.yaml")
