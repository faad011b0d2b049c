"""`check --deep FOLDER`: the trouble cases and one of every format, by the real command, file by file.

What is right for each case stands in its README.md in tests/cases/data.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from dataloader_svc.testing.data import WRITERS, tiny_rows, write_source
from real_job import COMMAND, REPO, environment, run_cli

CASES = REPO / "tests/cases/data"

FINE: dict[str, int] = {
    "02-cmyk-jpeg/*.jpg": 2,
    "04-palette-and-alpha/*.png": 3,
    "05-exif-orientation/*.jpg": 8,
    "07-animated-images/anim.gif": 1,
    "07-animated-images/anim.png": 1,
    "07-animated-images/anim.webp": 1,
    "14-jpeg-oddities/*.jpg": 3,
    "16-video-rotation/rot90.mp4": 1,
    "19-video-odd-size/*.mp4": 2,
    "19-video-odd-size/odd_33x17.mkv": 1,
    "22-video-single-keyframe/one_key.mp4": 1,
    "23-video-reordered-late-start/bframes_from_5s.mkv": 1,
    "25-audio-channel-counts/*.wav": 3,
    "28-tar-truncated/cut.tar": 3,
    "28-tar-truncated/next.tar": 2,
    "29-tar-long-names/gnu.tar": 2,
    "29-tar-long-names/pax.tar": 2,
    "29-tar-long-names/pax_global.tar": 2,
    "31-tar-duplicate-names/a/0.tar": 1,
    "31-tar-duplicate-names/b/0.tar": 1,
    "35-tar-no-members-or-gzip/empty.tar": 0,
    "35-tar-no-members-or-gzip/good.tar": 2,
    "35-tar-no-members-or-gzip/really_gzip.tar": 2,
    "35-tar-no-members-or-gzip/zero_bytes.tar": 0,
    "37-parquet-nested-images/many.parquet": 300,
    "37-parquet-nested-images/nested.parquet": 4,
    "41-parquet-empty-row-groups/a_none.parquet": 0,
    "41-parquet-empty-row-groups/b_zero_groups.parquet": 3,
    "41-parquet-empty-row-groups/c_uneven.parquet": 53,
    "43-jsonl-bom-crlf/bom_crlf.jsonl": 3,
    "43-jsonl-bom-crlf/plain.jsonl": 3,
    "44-jsonl-blank-lines/blank.jsonl": 3,
    "46-jsonl-very-long-line/long.jsonl": 3,
    "47-jsonl-mixed-types/x.png": 1,
    "52-source-smaller-than-batch/big.jsonl": 100,
    "52-source-smaller-than-batch/tiny.jsonl": 3,
    "54-uneven-rank-data/s0.jsonl": 10,
    "54-uneven-rank-data/s1.jsonl": 10,
    "54-uneven-rank-data/s2.jsonl": 10,
    "54-uneven-rank-data/s3.jsonl": 3,
    "55-resume-id-stream/part0.jsonl": 1,
    "55-resume-id-stream/part1.jsonl": 7,
    "55-resume-id-stream/part2.jsonl": 93,
}
"""File -> rows, of files in which nothing is bad."""

PARTLY: dict[str, tuple[int, dict[str, list[tuple[str, int | None, str]]]]] = {
    "01-truncated-jpeg/*.jpg": (1, {"truncated": [("cut.jpg", None, "")]}),
    "08-decompression-bomb/*.png": (2, {"too_many_pixels": [("bomb.png", None, "")]}),
    "10-progressive-jpeg/*.jpg": (2, {"truncated": [("progressive_cut.jpg", None, "")]}),
    "11-tiny-and-thin-images/*.png": (
        6,
        {"bad_shape": [("w1_h400.png", None, ""), ("w400_h1.png", None, "")]},
    ),
    "13-not-an-image/*.png": (1, {"not_media": [("api.png", None, "")]}),
    "13-not-an-image/page.jpg": (0, {"not_media": [("page.jpg", None, "")]}),
    "17-video-without-video-stream/sound_only.mp4": (0, {"no_stream": [("sound_only.mp4", None, "")]}),
    "20-video-truncated/*.mp4": (
        0,
        {"truncated": [("moov_first_cut.mp4", None, ""), ("moov_last_cut.mp4", None, "")]},
    ),
    "26-audio-broken-headers/*.wav": (2, {"bad_shape": [("zero.wav", None, "")]}),
    "31-tar-duplicate-names/twice.tar": (1, {"bad_record": [("twice.tar", 0, "")]}),
    "34-tar-empty-member-missing-part/holes.tar": (
        2,
        {"missing_field": [("holes.tar", 1, "png"), ("holes.tar", 2, "txt"), ("holes.tar", 4, "png")]},
    ),
    "38-parquet-dictionary/d0.parquet": (3, {"missing_field": [("d0.parquet", 3, "text")]}),
    "38-parquet-dictionary/d1.parquet": (3, {"missing_field": [("d1.parquet", 3, "text")]}),
    "40-parquet-null-rows/nulls.parquet": (
        2,
        {
            "missing_field": [("nulls.parquet", 1, "text"), ("nulls.parquet", 3, "image")],
            "empty_text": [("nulls.parquet", 2, "text")],
            "missing_file": [("nulls.parquet", 4, "image")],
        },
    ),
    "47-jsonl-mixed-types/mixed.jsonl": (
        5,
        {
            "missing_field": [("mixed.jsonl", 2, "text")],
            "wrong_type": [
                ("mixed.jsonl", 3, "text"),
                ("mixed.jsonl", 5, "text"),
                ("mixed.jsonl", 7, ""),
                ("mixed.jsonl", 8, ""),
                ("mixed.jsonl", 9, ""),
            ],
        },
    ),
    "49-jsonl-cut-last-row/cut.jsonl": (
        2,
        {"bad_record": [("cut.jsonl", 1, ""), ("cut.jsonl", 3, ""), ("cut.jsonl", 4, "")]},
    ),
    "50-mds-broken/good/shard.00000.mds": (3, {"empty_text": [("shard.00000.mds", 1, "text")]}),
    "61-empty-and-special-text/texts.jsonl": (
        9,
        {"empty_text": [("texts.jsonl", row, "text") for row in (0, 1, 2)]},
    ),
}
"""File -> rows that are fine, and reason -> (file, row, field) of those that aren't."""

UNUSABLE: dict[str, str] = {
    "32-tar-parts-not-adjacent/interleaved.tar": "parts of sample '0000' are not next to each other",
    "43-jsonl-bom-crlf/utf16.jsonl": "is UTF-16",
    "50-mds-broken/bad_hash/shard.00000.mds": "is not what was written: sha1",
    "50-mds-broken/broken_index/index.json": "is not JSON",
    "50-mds-broken/cut/shard.00000.mds": "has 459 bytes, index.json says 650",
    "50-mds-broken/empty_shards/index.json": "lists no shards",
    "50-mds-broken/index_says_6/shard.00000.mds": "holds 4 samples, index.json says 6",
    "50-mds-broken/missing_shard/shard.00000.mds": "no such file",
}

NOTED = {
    "28-tar-truncated/cut.tar": "what follows is lost",
    "35-tar-no-members-or-gzip/empty.tar": "has no samples",
    "35-tar-no-members-or-gzip/zero_bytes.tar": "is an empty file",
    "41-parquet-empty-row-groups/a_none.parquet": "has no rows",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each format, of two shards with 10 rows each and pictures in them, or beside them."""
    folder = tmp_path_factory.mktemp("every format")
    for name in WRITERS.names():
        write_source(folder / name, name, tiny_rows(20, image_side=28), shards=2)
    return folder


def deep(*args: object) -> tuple[int, dict[str, Any]]:
    done = run_cli("check", "--deep", *args, "--json")
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    code, report = deep(CASES, "--all")
    assert code == 1
    assert report["ok"] is False
    return report


def test_every_case_has_the_outcome_of_its_readme(cases: dict[str, Any]) -> None:
    files = {each["file"]: each for each in cases["files"]}
    assert len(files) == len(cases["files"])
    assert files.keys() == FINE.keys() | PARTLY.keys() | UNUSABLE.keys()
    for name, rows in FINE.items():
        found = files[name]
        assert (found["rows"], found["fine"], found["bad"], found["error"]) == (rows, rows, {}, None), name
        assert found["places"] == [], name
    for name, (fine, bad) in PARTLY.items():
        found, folder = files[name], name.rpartition("/")[0]
        assert found["fine"] == fine, name
        assert found["bad"] == {reason: len(places) for reason, places in bad.items()}, name
        assert found["rows"] == fine + sum(map(len, bad.values())), name
        places = {
            (each["reason"], each["file"], each["row"], each["field"]): each["detail"]
            for each in found["places"]
        }
        assert places.keys() == {
            (reason, f"{folder}/{file}", row, field)
            for reason, places in bad.items()
            for file, row, field in places
        }, name
        assert all(places.values()), name
    for name, why in UNUSABLE.items():
        assert files[name]["rows"] == 0, name
        assert why in files[name]["error"], name
    for name, note in NOTED.items():
        assert any(note in each for each in files[name]["notes"]), name
    assert sum(bool(each["notes"]) for each in files.values()) == len(NOTED)


def test_all_media_of_the_cases_are_decoded(cases: dict[str, Any]) -> None:
    media = {each["file"]: each["media"] for each in cases["files"]}
    assert media["37-parquet-nested-images/many.parquet"] == 300
    assert media["37-parquet-nested-images/nested.parquet"] == 3
    assert media["40-parquet-null-rows/nulls.parquet"] == 5
    assert media["47-jsonl-mixed-types/mixed.jsonl"] == 3
    assert media["50-mds-broken/good/shard.00000.mds"] == 4
    assert media["05-exif-orientation/*.jpg"] == 8


def test_what_is_no_data_is_listed_with_why(cases: dict[str, Any]) -> None:
    files = {path.relative_to(CASES).as_posix() for path in CASES.rglob("*") if path.is_file()}
    left = {name for name in files if name.endswith((".md", ".yaml", ".json")) and "50-mds" not in name}
    left |= {name for name in files if name.endswith("README.md")}
    found = {each["file"]: each["why"] for each in cases["not_read"]}
    assert found.keys() == left
    assert found["58-micro-batch-token-limit/balance.json"] == "no format has files called *.json"


def test_one_of_every_format_is_fine(written: Path) -> None:
    code, report = deep(written)
    assert code == 0
    assert report["ok"] is True
    by_format: dict[str, list[tuple[int, int]]] = {}
    for each in report["files"]:
        assert each["error"] is None
        assert each["bad"] == {}
        assert each["notes"] == []
        by_format.setdefault(each["format"], []).append((each["fine"], each["media"]))
    beside = [by_format.pop("image")]
    assert sorted(beside[0]) == [(20, 20)] * 2  # those of JSON lines and of the manifest are files
    shards = {name: [(10, 10), (10, 10)] for name in WRITERS.names()}
    # A Hugging Face folder without any description of itself is files of parquet.
    shards["parquet"] += shards.pop("huggingface")
    assert by_format == shards


def test_tables_for_people(written: Path, tmp_path: Path) -> None:
    done = run_cli("check", "--deep", CASES, COLUMNS="200")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    words = [line.split() for line in lines]
    assert ["01-truncated-jpeg/*.jpg", "image", "2", "1", "1", "2", "truncated", "1"] in words
    assert ["28-tar-truncated/next.tar", "webdataset", "2", "2", "0", "2"] in words
    holes = [line for line in words if line[:1] == ["34-tar-empty-member-missing-part/holes.tar"]]
    assert [line[1:4] for line in holes[1:]] == [
        ["1", "png", "missing_field"],
        ["2", "txt", "missing_field"],
        ["4", "png", "missing_field"],
    ]
    # Three of a reason are listed.
    assert sum(line[:1] == ["47-jsonl-mixed-types/mixed.jsonl"] for line in words) == 1 + 4
    assert "note: 47-jsonl-mixed-types/mixed.jsonl: 2 more bad rows; --all lists them" in lines
    assert next(line[:8] for line in words if line[:1] == ["*.yaml"]) == [
        "*.yaml",
        "1",
        "no",
        "format",
        "has",
        "files",
        "called",
        "*.yaml",
    ]
    assert lines[-1].endswith("rows and files of media are bad; 8 files can't be used")

    fine = run_cli("check", "--deep", written / "mds")
    assert fine.returncode == 0
    assert fine.stdout.splitlines()[-1] == "all 20 rows and files of media are fine"

    nothing = run_cli("check", "--deep", tmp_path)
    assert nothing.returncode == 1
    assert "no file that any format or decoder here reads" in nothing.stdout


def test_a_folder_needs_deep_and_a_job_has_no_all(written: Path, tmp_path: Path) -> None:
    plain = run_cli("check", written)
    assert plain.returncode == 2
    assert "is a folder: with --deep, all that is in it is checked" in plain.stderr
    config = tmp_path / "job.yaml"
    config.write_text("job: x\n")
    assert "--all is for a folder" in run_cli("check", "--deep", "--all", config).stderr


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    """While a decoder waits for a picture that never comes: a pipe that nobody writes to the end."""
    folder, scratch = tmp_path / "data", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    os.mkfifo(folder / "picture.png")
    (folder / "rows.jsonl").write_text('{"text": "a", "image": "picture.png"}\n')
    with (
        subprocess.Popen(
            [*COMMAND, "check", "--deep", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(TMPDIR=str(scratch)),
            text=True,
        ) as process,
        (folder / "picture.png").open("wb"),
    ):  # goes on when the decoder has opened it
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "interrupted")
    assert len(children) >= 2
    assert not any(child.is_running() for child in children)
    assert list(scratch.iterdir()) == []
