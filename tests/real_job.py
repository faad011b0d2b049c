"""Tiny jobs on real processes: data and YAML on the fly, commands in a subprocess, a service that runs.

For tests at the level of what a user types. Whatever is started here carries RUN_MARK in its environment, by
which `conftest.py` finds what was left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from dataloader_svc.sample import keyed_rng
from dataloader_svc.testing.data import TinyRow, png, write_source
from dataloader_svc.testing.tokenizer import IMAGE, VIDEO, make_tokenizer

REPO = Path(__file__).resolve().parents[1]
RUN_MARK = "DATALOADER_TEST_RUN"
COMMAND = (sys.executable, "-m", "dataloader_svc.cli.main")
STOP_S = 30.0  # a service that is asked to stop and is still there then hangs; it takes one or two seconds

WORDS = ("a", "of", "loader", "naïve", "für", "猫", "🙂", "sequence", "the", "picture", "block", "is")


def words(number: int, count: int, *, seed: int = 0) -> str:
    """`count` words that begin with `number`: texts that a test can tell apart."""
    picks = keyed_rng(seed, "words", number).integers(len(WORDS), size=count)
    return f"{number}: " + " ".join(WORDS[pick] for pick in picks.tolist())


def write_data(folder: Path) -> Path:
    """Three sources and a tokenizer: `notes` (jsonl, 120 rows), `pages` (parquet, 60), `photos` (tar, 48).

    Lengths are skewed: pages reach beyond a sequence of 256 tokens. Pictures have 1 to 9 tokens.
    """
    rng = keyed_rng(0, "real job")
    notes = [TinyRow(text=words(i, int(n))) for i, n in enumerate(rng.geometric(0.05, 120))]
    pages = [TinyRow(text=words(i, int(n), seed=1)) for i, n in enumerate(rng.geometric(0.015, 60))]
    photos = [
        TinyRow(
            text=words(i, int(n), seed=2),
            image=png(28 * (1 + i % 3), 28 * (1 + i // 3 % 3), (5 * i % 256, 100, 255 - 5 * i % 256)),
        )
        for i, n in enumerate(rng.integers(2, 12, size=48))
    ]
    write_source(folder / "notes", "jsonl", notes, shards=3)
    write_source(folder / "pages", "parquet", pages, shards=2)
    write_source(folder / "photos", "webdataset", photos, shards=2)
    make_tokenizer(folder / "tokenizer")
    return folder


def job_values(data: Path, **changes: Any) -> dict[str, Any]:
    """The YAML of a job on `write_data`'s folder, as a mapping; `changes` replace top-level fields."""
    small = {"block": 2048}  # several blocks even of a tiny source
    return {
        "job": "tiny",
        "seed": 5,
        "tokenizer": str(data / "tokenizer"),
        "sequence_length": 256,
        "global_batch": {"sequences": 8},
        "sources": {
            "notes": {
                "format": "jsonl",
                "path": f"{data}/notes/*.jsonl",
                "text": "text",
                "shuffle": small,
                "extent": 1024,
            },
            "pages": {
                "format": "parquet",
                "path": f"{data}/pages/*.parquet",
                "text": "content",
                "shuffle": small,
            },
            "photos": {
                "format": "webdataset",
                "path": f"{data}/photos/*.tar",
                "text": "txt",
                "image": "png",
                "shuffle": small,
                "extent": 4096,
            },
        },
        "media_tokens": {"image": IMAGE, "video": VIDEO},
        "images": {"min_pixels": 784, "max_pixels": 28 * 28 * 16},
        "mixture": {"schedule": [{"step": 0, "notes": 0.4, "pages": 0.4, "photos": 0.2}]},
        "index_cache": str(data / "index"),
    } | changes


def write_config(path: Path, values: Mapping[str, Any]) -> Path:
    """Write the YAML, fields in the order of `values`."""
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))
    return path


def environment(**extra: str) -> dict[str, str]:
    """Of a subprocess: this tree on its path, no colours, our mark, `extra`."""
    folders = [REPO, REPO / "balancers", REPO / "clients"]
    paths = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": paths, "NO_COLOR": "1", "TERM": "dumb"} | extra


def run_cli(*args: object, timeout_s: float = 120.0, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `dataloader-svc ARGS` to its end."""
    command = [*COMMAND, *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment(**extra), check=False
    )


@dataclass(slots=True)
class Served:
    """A `serve` that runs. `address`, `pids` (by role) and `job` are what it printed."""

    process: subprocess.Popen[str]
    errors: Path
    run_dir: Path
    address: str = ""
    job: str = ""
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return self.errors.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code. Also fine when it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def children(self) -> dict[str, psutil.Process]:
        """The role processes that run now, by name, whichever life they are in."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = child.cmdline()
                if "dataloader_svc.engine.role" in line:
                    role, index = line[line.index("--role") + 1], line[line.index("--index") + 1]
                    found[f"{role}-{index}"] = child
        return found


def start(config: Path, *args: object, folder: Path | None = None, **extra: str) -> Served:
    """Start `serve` and do not wait for it. `folder` (the config's): temp files, stderr, logs under `run`."""
    folder = folder or config.parent
    scratch, run_dir = folder / "tmp", folder / "run"
    scratch.mkdir(exist_ok=True)
    errors = folder / "serve.stderr"
    command = [*COMMAND, "serve", config, "--json", "--address", "127.0.0.1:0", "--run-dir", run_dir, *args]
    with errors.open("w") as file:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=environment(TMPDIR=str(scratch), **extra),
        )
    return Served(process, errors, run_dir)


def wait_ready(served: Served) -> Served:
    """Wait for the line that `serve --json` prints; AssertionError with its stderr where it ends before."""
    assert served.process.stdout is not None
    line = served.process.stdout.readline()
    assert line, f"serve ended with {served.process.wait(STOP_S)}:\n{served.stderr}"
    values = json.loads(line)
    served.address, served.job, served.pids = values["address"], values["job"], values["pids"]
    return served


@contextlib.contextmanager
def serve(config: Path, *args: object, folder: Path | None = None, **extra: str) -> Iterator[Served]:
    """A service that is ready; stopped at the end, which must go well unless it was ended before."""
    served = start(config, *args, folder=folder, **extra)
    try:
        yield wait_ready(served)
        if served.process.poll() is None:
            assert served.stop() == 0, served.stderr
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(served.process.pid).children(recursive=True)
            if served.process.poll() is None:
                served.process.kill()
                served.process.wait()
                psutil.wait_procs(family, STOP_S)
        assert served.process.stdout is not None
        served.process.stdout.close()


def marked_processes() -> list[psutil.Process]:
    """Processes that this test run has started and that still live, zombies of ours aside."""
    found = []
    mark = os.environ[RUN_MARK]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(RUN_MARK) == mark:
                found.append(process)
    return found


def described(processes: Sequence[psutil.Process]) -> str:
    """A line each: pid, command line, and the test that started it."""
    lines = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            test = process.environ().get("PYTEST_CURRENT_TEST", "?")
            lines.append(f"  {process.pid}: {' '.join(process.cmdline())[:120]} (of {test})")
    return "\n".join(lines)
