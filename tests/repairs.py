"""A small job with bad samples, their repair, and a trainer who counts what it gets of each position.

For tests of readmission. The judge is what trainers received; the plan log is only asked where it must agree.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from dataloader_client import Batch, Coords, DataServiceLoader, Mesh
from dataloader_svc.cli.quarantine import open_job_store
from dataloader_svc.config.load import load_config
from dataloader_svc.observe.audit import RankBatch, StepDelivery, check_once
from dataloader_svc.planner.history import read_records
from reading import take_step
from real_job import job_values, run_cli, words, write_config

NOTES = PHOTOS = 40
BAD_NOTES = (5, 6, 17)
BAD_PHOTOS = (3, 20)
UNDECODABLE = 30

Place = tuple[str, int, int]


def picture(colour: int) -> bytes:
    buffer = io.BytesIO()
    noise = Image.effect_noise((84, 84), 60).convert("RGB")
    Image.blend(noise, Image.new("RGB", (84, 84), (colour, 100, 50)), 0.5).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def broken_in_the_middle(data: bytes) -> bytes:
    """Header and end are whole, so that only decoding finds out."""
    cut = len(data) // 2
    return data[:cut] + bytes(200) + data[cut + 200 :]


PICTURES = [picture(number) for number in range(PHOTOS)]


def write_notes(folder: Path, *, mended: bool, more: int = 0) -> None:
    lines = [json.dumps({"text": words(number, 6)}) for number in range(NOTES + more)]
    if mended:
        for number in BAD_NOTES:
            lines[number] = json.dumps({"text": f"mended {number} " + words(number, 30)})
    else:
        lines[5], lines[6], lines[17] = "{not json", json.dumps({"text": None}), json.dumps({"text": "  "})
    (folder / "notes.jsonl").write_text("\n".join(lines) + "\n")


def write_photos(folder: Path, *, mended: bool, but: Iterable[int] = ()) -> None:
    """`but`: photos that stay as they were."""
    with tarfile.open(folder / "photos.tar", "w") as tar:
        for number, data in enumerate(PICTURES):
            if not mended or number in but:
                if number in BAD_PHOTOS:
                    data = b"<html>404</html>"
                elif number == UNDECODABLE:
                    data = broken_in_the_middle(data)
            for name, content in (
                (f"{number:03}.jpg", data),
                (f"{number:03}.txt", words(number, 4).encode()),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def write_job(data: Path, folder: Path, *, samples: int = 8) -> Path:
    """Two sources of 40 rows, one epoch: three bad notes, two bad photos, one found out when decoded."""
    folder.mkdir(exist_ok=True)
    write_notes(folder, mended=False)
    write_photos(folder, mended=False)
    values: dict[str, Any] = job_values(data)
    common = {"shuffle": {"block": 2048}, "max_bad_fraction": 0.5}
    values["sources"] = {
        "notes": {"format": "jsonl", "path": "notes.jsonl", "text": "text", "extent": 300, **common},
        "photos": {
            "format": "webdataset",
            "path": "photos.tar",
            "text": "txt",
            "image": "jpg",
            "extent": 9000,
            **common,
        },
    }
    values["mixture"] = {"schedule": [{"step": 0, "notes": 0.5, "photos": 0.5}], "exhausted": "drop"}
    values["global_batch"] = {"samples": samples}
    del values["index_cache"]
    return write_config(folder / "job.yaml", values)


class Trainer:
    """What a trainer has received in all its lives.

    loud, silent   how often each position of epoch 0 came with loss, and without: by `count`
    deliveries, batches   of each step, as it was read last
    """

    def __init__(self) -> None:
        self.loud: Counter[Place] = Counter()
        self.silent: Counter[Place] = Counter()
        self.deliveries: dict[int, StepDelivery] = {}
        self.batches: dict[int, list[Batch]] = {}
        self.state: dict[str, Any] | None = None

    def copy(self) -> Trainer:
        """Another one that has received the same so far."""
        other = Trainer()
        other.deliveries, other.batches, other.state = dict(self.deliveries), dict(self.batches), self.state
        return other

    @contextmanager
    def joined(self, address: str, mesh: Mesh | None = None) -> Iterator[list[DataServiceLoader]]:
        """All ranks, at the state that was reached."""
        mesh = mesh or Mesh()
        loaders = [DataServiceLoader(address, mesh=mesh, coords=Coords(dp=dp)) for dp in range(mesh.dp)]
        try:
            if self.state is not None:
                for loader in loaders:
                    loader.load_state_dict(self.state)
            yield loaders
        finally:
            for loader in loaders:
                loader.close()

    def take(self, loaders: list[DataServiceLoader], steps: int | None = None) -> int:
        """Read so many steps, or to the end of the data. Returns how many there were."""
        count = 0
        while steps is None or count < steps:
            ranks = [take_step(loader) for loader in loaders]
            if not ranks[0]:
                break
            self.state = loaders[0].state_dict()
            self._take(ranks)
            count += 1
        return count

    def read(self, address: str, steps: int | None = None, *, mesh: Mesh | None = None) -> int:
        """Join, read as `take` does, and leave."""
        with self.joined(address, mesh) as loaders:
            return self.take(loaders, steps)

    def _take(self, ranks: list[list[Batch]]) -> None:
        first = ranks[0][0]
        batches = [
            RankBatch(dp, 0, b.microbatch, {**b.numpy, **b.manifest.columns}, b.manifest.sources, 4)
            for dp, rank in enumerate(ranks)
            for b in rank
        ]
        assert self.state is not None
        delivery = StepDelivery(first.step, first.digest, batches, self.state["service"])
        self.deliveries[first.step] = delivery
        self.batches[first.step] = [batch for rank in ranks for batch in rank]

    def count(self) -> None:
        """Count positions over all steps, each as it was read last."""
        self.loud.clear()
        self.silent.clear()
        for batch in (batch for step in self.batches.values() for batch in step):
            for span in batch.manifest.spans():
                weights = batch.numpy["loss_weight"][span.offset : span.offset + span.length]
                if span.epoch == 0 and span.start == 0:
                    (self.loud if weights.any() else self.silent)[span.source, 0, span.position] += 1


def quarantined(job: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """(source, row) -> what `list --json` says of it, of epoch 0."""
    done = run_cli("quarantine", job, "--json")
    assert done.returncode == 0, done.stderr
    return {(row["source"], row["row"]): row for row in json.loads(done.stdout) if row["epoch"] == 0}


def readmit(job: Path, *args: object, code: int = 0, **environment: str) -> dict[str, Any]:
    done = run_cli("quarantine", "readmit", job, *args, "--json", **environment)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout) if code in (0, 1) else {"error": done.stderr}


def assert_each_once(job: Path, trainer: Trainer, *, silent: int) -> None:
    """Of epoch 0 all positions came with loss, once; `silent` more slots without."""
    trainer.count()
    assert set(trainer.loud) == {
        (source, 0, position) for source in ("notes", "photos") for position in range(NOTES)
    }
    assert set(trainer.loud.values()) == {1}
    assert sum(trainer.silent.values()) == silent
    store = open_job_store(load_config(job), None)
    assert store is not None
    with closing(store):
        records = [record for record in read_records(store) if record.step in trainer.deliveries]
    skipped = [(r.sources[s.source], s.epoch, s.position) for r in records for s in r.skipped]
    back = [(r.sources[s.source], s.epoch, s.position) for r in records for s in r.readmitted]
    last = trainer.deliveries[max(trainer.deliveries)]
    waiting = [tuple(run[:5]) for run in last.state["waiting"]]
    steps = [trainer.deliveries[step] for step in sorted(trainer.deliveries)]
    rows = {"notes": NOTES, "photos": PHOTOS}
    assert check_once(steps, skipped, waiting, last.state, rows, "dp=1", back) == []
    assert check_once(steps, skipped, waiting, last.state, rows, "dp=1")
    assert len(back) == len(BAD_NOTES) + len(BAD_PHOTOS) + silent


def mend(job: Path) -> None:
    write_notes(job.parent, mended=True)
    write_photos(job.parent, mended=True)
