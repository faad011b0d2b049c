"""Quarantined samples are repaired and readmitted: a trainer gets each of them once, and with loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from real_job import job_values, run_cli, serve, words, write_config
from repairs import (
    BAD_NOTES,
    BAD_PHOTOS,
    PICTURES,
    UNDECODABLE,
    Trainer,
    assert_each_once,
    broken_in_the_middle,
    mend,
    quarantined,
    readmit,
    write_job,
    write_notes,
    write_photos,
)


@pytest.fixture
def one_epoch(data: Path, tmp_path: Path) -> Path:
    return write_job(data, tmp_path)


def test_after_the_end_of_an_epoch(one_epoch: Path) -> None:
    """The worked example of docs/quarantine.md: list, repair, readmit, go on; and what may not be done."""
    trainer = Trainer()
    with serve(one_epoch) as service:
        trainer.read(service.address)
    steps = len(trainer.deliveries)
    listed = quarantined(one_epoch)
    assert sorted(listed) == [
        *(("notes", row) for row in BAD_NOTES),
        *(("photos", row) for row in (*BAD_PHOTOS, UNDECODABLE)),
    ]

    assert "nothing is chosen" in readmit(one_epoch, code=2)["error"]
    bad = readmit(one_epoch, "--all", code=1)
    assert bad["counts"] == {"still bad": 6}
    assert bad["request"] is None
    name = f"notes/0/{listed['notes', 5]['position']}"
    missing = readmit(one_epoch, "notes/0/99", code=2)["error"]
    assert "sample notes/0/99 is not in quarantine" in missing
    assert "nearest: notes/0/" in missing
    assert "is no sample" in readmit(one_epoch, "notes-5", code=2)["error"]

    write_notes(one_epoch.parent, mended=True, more=1)
    longer = readmit(one_epoch, "--source", "notes", code=1)
    assert {row["outcome"] for row in longer["samples"]} == {"refused"}
    assert "notes.jsonl: had 40 rows and has 41 now: rows were added" in longer["samples"][0]["why"]

    mend(one_epoch)
    dry = readmit(one_epoch, "--all", "--dry-run")
    assert dry["counts"] == {"readmit": 6}
    assert dry["request"] is None
    some = readmit(one_epoch, name)
    assert (some["request"], some["counts"], some["next_step"]) == (1, {"readmit": 1}, steps)
    rest = readmit(one_epoch, "--all")
    assert (rest["request"], rest["counts"]) == (2, {"readmit": 5, "asked": 1})
    again = readmit(one_epoch, "--all")
    assert (again["request"], again["counts"]) == (None, {"asked": 6})

    with serve(one_epoch) as service:
        assert trainer.read(service.address) > 0
    assert_each_once(one_epoch, trainer, silent=1)
    after = quarantined(one_epoch)
    assert all(row["readmitted"] >= steps for row in after.values())
    assert "6 samples, 6 of them readmitted since" in run_cli("quarantine", one_epoch).stdout
    assert run_cli("quarantine", "export", one_epoch).stdout == ""
    done = readmit(one_epoch, "--all")
    assert (done["request"], done["counts"]) == (None, {"readmitted": 6})
    with serve(one_epoch) as service:
        assert trainer.read(service.address) == 0


def test_back_to_a_checkpoint_before_the_masked_slot(one_epoch: Path) -> None:
    """Steps are replayed as they were: the slot stays silent although its picture is whole now."""
    trainer = Trainer()
    with serve(one_epoch) as service:
        trainer.read(service.address, 1)
        checkpoint = trainer.state
        trainer.read(service.address)
    digests = {step: delivery.digest for step, delivery in trainer.deliveries.items()}
    mend(one_epoch)
    readmit(one_epoch, "--all")
    trainer.state = checkpoint
    with serve(one_epoch) as service:
        trainer.read(service.address)  # all that was planned, to the end that it had
        trainer.read(service.address)
    for step, digest in digests.items():
        assert trainer.deliveries[step].digest == digest
    assert_each_once(one_epoch, trainer, silent=1)


def test_still_bad_and_then_mended(one_epoch: Path) -> None:
    trainer = Trainer()
    with serve(one_epoch) as service:
        trainer.read(service.address)
    write_notes(one_epoch.parent, mended=True)
    write_photos(one_epoch.parent, mended=True, but=[UNDECODABLE, 3])
    exported = one_epoch.parent / "bad.jsonl"
    assert run_cli("quarantine", "export", one_epoch, "--to", exported).returncode == 0
    first = readmit(one_epoch, "--from", exported, code=1)
    assert first["counts"] == {"readmit": 4, "still bad": 2}
    why = {(row["source"], row["row"]): row["why"] for row in first["samples"]}
    assert why["photos", 3].startswith("not_media")
    assert why["photos", UNDECODABLE].startswith(("decode_failed", "truncated"))
    with serve(one_epoch) as service:
        trainer.read(service.address)
    mend(one_epoch)
    second = readmit(one_epoch, "--shard", "photos.*")
    assert second["counts"] == {"readmit": 2, "readmitted": 1}
    with serve(one_epoch) as service:
        trainer.read(service.address)
    assert_each_once(one_epoch, trainer, silent=1)


def test_while_the_job_runs(data: Path, tmp_path: Path) -> None:
    """Pictures that rows name are put in their place; loaders forget what they held, nobody is restarted."""
    rows: list[dict[str, Any]] = []
    for number in range(40):
        (tmp_path / f"{number}.jpg").write_bytes(PICTURES[number])
        rows.append({"text": words(number, 6), "image": f"{number}.jpg"})
    missing, torn = [tmp_path / f"{number}.jpg" for number in (4, 11)], tmp_path / "25.jpg"
    whole = {path: path.read_bytes() for path in (*missing, torn)}
    for path in missing:
        path.unlink()
    torn.write_bytes(broken_in_the_middle(whole[torn]))
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"format": "jsonl", "path": "pairs.jsonl", "text": "text", "image": "image"}
    values = job_values(
        data,
        sources={"pairs": {**source, "max_bad_fraction": 0.5}},
        mixture={"schedule": [{"step": 0, "pairs": 1}]},
        global_batch={"samples": 8},
        index_cache="index",
    )
    job = write_config(tmp_path / "job.yaml", values)
    trainer = Trainer()
    with serve(job) as service, trainer.joined(service.address) as ranks:
        trainer.take(ranks, 7)
        listed = quarantined(job)  # of epoch 0; later ones may be planned already
        assert sorted(row for _, row in listed) == [4, 11, 25]
        for path, picture in whole.items():
            path.write_bytes(picture)
        names = [f"pairs/0/{row['position']}" for row in listed.values()]
        assert readmit(job, *names)["counts"] == {"readmit": 3}
        done: list[int] = []
        while done != [1, 3]:  # the planner looks every few seconds, and steps go on meanwhile
            assert trainer.take(ranks, 1) == 1
            done = trainer.state["service"].get("readmitted", [])
        trainer.take(ranks, 5)
        opened = service.logs().count("source pairs: 40 rows")
    assert opened > len([name for name in service.pids if name.startswith("loader")])
    trainer.count()
    assert set(trainer.loud) == {("pairs", 0, position) for position in range(40)}
    assert set(trainer.loud.values()) == {1}
    assert sum(trainer.silent.values()) == 1
