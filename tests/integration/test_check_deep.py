"""`check --deep` on a job: all rows are read, all media decoded, and what is bad counted with its places."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from dataloader_svc.testing.data import png
from real_job import job_values, run_cli, words, write_config

GOOD = 40
LATE = 4000
"""Rows of the notes: above the 2000 that a plain check reads."""


def photo(colour: int) -> bytes:
    """A JPEG of 84x84 that no compressor makes small."""
    noise = Image.effect_noise((84, 84), 60).convert("RGB")
    buffer = io.BytesIO()
    Image.blend(noise, Image.new("RGB", (84, 84), (colour, 100, 50)), 0.5).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def broken_in_the_middle(data: bytes) -> bytes:
    cut = len(data) // 2
    return data[:cut] + bytes(200) + data[cut + 200 :]


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def bad(data: Path, tmp_path: Path) -> Path:
    """Photos with 5 bad ones of 45, one of them in its pixels alone; notes whose last three rows are bad."""
    lines = [json.dumps({"text": words(i, 6), "lang": "en" if i % 4 else "xx"}) for i in range(LATE)]
    lines += ["{not json", json.dumps({"lang": "en"}), json.dumps({"text": "   ", "lang": "en"})]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines) + "\n")
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        for i in range(GOOD):
            add(tar, f"{i:03}.jpg", photo(i))
            add(tar, f"{i:03}.txt", words(i, 4).encode())
        bad = {900: b"<html>404</html>", 901: broken_in_the_middle(photo(7)), 904: None}
        bad |= dict.fromkeys((902, 903), b"<html>404</html>")
        for number, picture in sorted(bad.items()):
            if picture is not None:
                add(tar, f"{number}.jpg", picture)
            add(tar, f"{number}.txt", b"with a picture that is none")
    (tmp_path / "garbage.tar").write_bytes(b"\x01" * 4096)
    values: dict[str, Any] = job_values(data)
    values["sources"] = {
        "notes": {
            "format": "jsonl",
            "path": "notes.jsonl",
            "text": "text",
            "extent": 4096,
            "shuffle": {"block": 16384},
            "transforms": [{"filter": "lang == 'en'"}],
        },
        "photos": {
            "format": "webdataset",
            "path": "photos.tar",
            "text": "txt",
            "image": "jpg",
            "extent": 65536,
            "shuffle": False,
            "max_bad_fraction": 0.2,
        },
    }
    values["mixture"] = {"schedule": [{"step": 0, "notes": 0.5, "photos": 0.5}]}
    del values["index_cache"]
    return write_config(tmp_path / "job.yaml", values)


def change(config: Path, source: str, **settings: object) -> None:
    values = yaml.safe_load(config.read_text())
    values["sources"][source].update(settings)
    write_config(config, values)


def test_every_row_is_read_and_every_picture_decoded(bad: Path) -> None:
    done = run_cli("check", bad, "--deep", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    notes, photos = report["sources"]["notes"], report["sources"]["photos"]
    assert (notes["rows"], notes["rows_read"]) == (LATE + 3, LATE + 3)
    assert (notes["fine"], notes["filtered"]) == (LATE * 3 // 4, LATE // 4)
    assert notes["bad"] == {"bad_record": 1, "missing_field": 1, "empty_text": 1}
    places = {(each["reason"], Path(each["shard"]).name, each["row"]) for each in notes["first"]}
    assert places == {
        ("bad_record", "notes.jsonl", LATE),
        ("missing_field", "notes.jsonl", LATE + 1),
        ("empty_text", "notes.jsonl", LATE + 2),
    }
    assert (photos["rows_read"], photos["fine"], photos["media"]) == (GOOD + 5, GOOD, GOOD + 1)
    assert photos["bad"] == {"not_media": 3, "missing_field": 1}
    assert photos["undecodable"] == {"decode_failed": 1}
    (decoded,) = [each for each in photos["first"] if each["when"] == "decoded"]
    assert decoded["row"] == GOOD + 1

    # What needs pixels, a plain check does not know, nor rows that lie beyond those it reads.
    plain = json.loads(run_cli("check", bad, "--json").stdout)["sources"]
    assert plain["photos"]["undecodable"] == {}
    assert plain["photos"]["fine"] == GOOD + 1
    assert plain["notes"]["rows_read"] < LATE


def test_the_table_names_places_and_the_limit_decides_on_the_exit_code(bad: Path, tmp_path: Path) -> None:
    change(bad, "photos", max_bad_minimum=5)
    done = run_cli("check", bad, "--deep")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {tuple(line.split()[:4]) for line in done.stdout.splitlines()}
    assert ("photos", "not_media", "3", "read") in rows
    assert ("photos", "decode_failed", "1", "decoded") in rows
    assert f"photos.tar:{GOOD + 1}: " in done.stdout

    # All five count, the one that only its pixels betray as well: 5 of 45 is 0.111.
    change(bad, "photos", max_bad_fraction=0.1)
    above = run_cli("check", bad, "--deep")
    assert above.returncode == 1
    assert "sources.photos: 5 of 45 rows are bad, above max_bad_fraction 0.1" in above.stdout
    change(bad, "photos", max_bad_fraction=0.12)
    assert run_cli("check", bad, "--deep").returncode == 0


def test_unreadable_shards_are_listed(bad: Path) -> None:
    change(bad, "photos", path=["photos.tar", "garbage.tar"])
    done = run_cli("check", bad, "--deep", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    (shard,) = report["sources"]["photos"]["bad_shards"]
    assert Path(shard["path"]).name == "garbage.tar"
    assert report["sources"]["photos"]["fine"] == GOOD
    assert len(report["problems"]) == 1


def test_media_beside_their_shard(data: Path, tmp_path: Path) -> None:
    """A clip or picture that a row only names is read and decoded too."""
    whole = photo(1)
    files = {"fine.jpg": whole, "cut.jpg": broken_in_the_middle(whole), "fine.png": png(28, 28, (1, 2, 3))}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    rows = [{"text": name, "picture": name} for name in (*files, "gone.png")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    values = job_values(data)
    values["sources"] = {"it": {"format": "jsonl", "path": "rows.jsonl", "text": "text", "image": "picture"}}
    values["mixture"] = {"schedule": [{"step": 0, "it": 1}]}
    del values["index_cache"]
    done = run_cli("check", write_config(tmp_path / "job.yaml", values), "--deep", "--json")
    found = json.loads(done.stdout)["sources"]["it"]
    assert found["fine"] == 2
    assert found["bad"] == {"missing_file": 1}
    assert found["undecodable"] == {"decode_failed": 1}
