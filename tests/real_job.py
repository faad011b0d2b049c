"""Tiny jobs on real processes: data and YAML on the fly, commands in a subprocess, a service that runs.

For tests at the level of what a user types. Whatever is started here carries RUN_MARK in its environment, by
which `conftest.py` finds what was left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from dataloader_svc.sample import keyed_rng
from dataloader_svc.testing.data import TinyRow, png, write_source
from dataloader_svc.testing.tokenizer import IMAGE, VIDEO, make_tokenizer

REPO = Path(__file__).resolve().parents[1]
RUN_MARK = "DATALOADER_TEST_RUN"
SHARED = Path("/dev/shm")
COMMAND = (sys.executable, "-m", "dataloader_svc")
STOP_S = 60.0
"""A service that is asked to stop and is still there then hangs: it takes one or two seconds, and gives up on
what hangs in `engine.job.CLOSE_S`.
"""

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


def text_values(data: Path) -> dict[str, Any]:
    """A job of text alone, 8 sequences a step in microbatches of 2, as trainers of language models read."""
    mixture = {"schedule": [{"step": 0, "notes": 0.5, "pages": 0.5}]}
    values = job_values(data, mixture=mixture, global_batch={"sequences": 8, "per_microbatch": 2})
    del values["sources"]["photos"]
    return values


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


def torchrun(
    program: Path, *flags: object, ranks: int | None, options: Mapping[str, object]
) -> subprocess.CompletedProcess[str]:
    """Run an example to its end, on loopback and one thread a rank. `ranks`: None is without torchrun."""
    launch = (
        [] if ranks is None else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    )
    words = [*flags, *(word for option in options.items() for word in option)]
    return subprocess.run(
        [sys.executable, *launch, str(program), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(HF_HUB_OFFLINE="1", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"),
        check=False,
    )


class Served:
    """A `serve` that was started. `address`, `pids` (by role) and `job` are what it printed when ready."""

    def __init__(self, process: subprocess.Popen[str], run_dir: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        self.address = ""
        self.job = ""
        self.pids: dict[str, int] = {}
        self._lines: list[str] = []
        self._change = threading.Condition()
        self._reader = threading.Thread(target=self._read_stderr)
        self._reader.start()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._change:
                self._lines.append(line)
                self._change.notify_all()
        with self._change:
            self._change.notify_all()

    @property
    def stderr(self) -> str:
        """What it has written to stderr: so far, or all once it has ended."""
        if self.process.poll() is not None:
            self._reader.join(STOP_S)
        return "".join(self._lines)

    def wait_said(self, text: str, *, times: int = 1) -> None:
        """Wait for `times` lines on stderr that hold `text`."""
        with self._change:
            self._change.wait_for(
                lambda: self._said(text) >= times or not self._reader.is_alive(), 2 * STOP_S
            )
            assert self._said(text) >= times, "".join(self._lines)

    def _said(self, text: str) -> int:
        return sum(text in line for line in self._lines)

    def wait_ready(self) -> Self:
        """Wait for the line that `serve --json` prints; AssertionError where it ends before."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait(STOP_S)
            raise AssertionError(f"serve ended with {code}:\n{self.stderr}")
        values = json.loads(line)
        self.address, self.job, self.pids = values["address"], values["job"], values["pids"]
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code. Also fine when it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def family(self) -> list[psutil.Process]:
        """All processes below it that run now."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def roles(self) -> dict[str, psutil.Process]:
        """The role processes that run now, by name, whichever life they are in."""
        found = {}
        for child in self.family():
            with contextlib.suppress(psutil.Error):
                line = child.cmdline()
                if "dataloader_svc.engine.role" in line:
                    role, index = line[line.index("--role") + 1], line[line.index("--index") + 1]
                    name = f"{role}-shadow-{index}" if "--shadow" in line else f"{role}-{index}"
                    name = f"{line[line.index('--split') + 1]}-{name}" if "--split" in line else name
                    found[self._promoted().get(child.pid, name)] = child
        return found

    def _promoted(self) -> dict[int, str]:
        """The role that a former shadow is now, by its pid."""
        taken = re.compile(r"process (\d+) takes its place")
        return {
            int(pid): path.stem
            for path in (self.run_dir / "logs").glob("*.log")
            for pid in taken.findall(path.read_text())
        }

    def logs(self) -> str:
        """What all roles have written."""
        return "".join(path.read_text() for path in sorted((self.run_dir / "logs").glob("*.log")))

    def _end(self) -> None:
        """Whatever happened: no process is left, and no pipe open."""
        family = []
        if self.process.poll() is None:
            family = self.family()
            self.process.kill()
            self.process.wait()
        psutil.wait_procs(family, STOP_S)
        self._reader.join(STOP_S)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextlib.contextmanager
def starting(
    config: Path, *args: object, options: Sequence[str] = (), ready_line: bool = True, **extra: str
) -> Iterator[Served]:
    """A `serve` that is not waited for; killed at the end where it still runs.

    args         further ones of `serve`, `options` those of `dataloader-svc` itself
    ready_line   with `--json`
    extra        environment
    """
    scratch, run_dir = config.parent / "tmp", config.parent / "run"
    scratch.mkdir(exist_ok=True)
    command = [*COMMAND, *options, "serve", config, "--address", "127.0.0.1:0", "--run-dir", run_dir, *args]
    process = subprocess.Popen(
        [*map(str, command), *(["--json"] if ready_line else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(scratch), **extra),
    )
    served = Served(process, run_dir)
    try:
        yield served
    finally:
        served._end()


@contextlib.contextmanager
def serve(config: Path, *args: object, **extra: str) -> Iterator[Served]:
    """A service that is ready; stopped at the end, which must go well unless it was ended before."""
    with starting(config, *args, **extra) as served:
        yield served.wait_ready()
        if served.process.poll() is None:
            assert served.stop() == 0, served.stderr


def assert_gone(processes: Sequence[psutil.Process]) -> None:
    """Wait until all of them have ended."""
    _, alive = psutil.wait_procs(list(processes), STOP_S)
    assert not alive, described(alive)


def marked_processes() -> list[psutil.Process]:
    """Processes that this test run has started and that still live.

    Zombies of ours aside, and the standard library's resource tracker, which ends with this process.
    """
    found = []
    mark = os.environ[RUN_MARK]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            tracker = any("multiprocessing.resource_tracker" in word for word in process.cmdline())
            if alive and not tracker and process.environ().get(RUN_MARK) == mark:
                found.append(process)
    return found


def named_segments() -> set[Path]:
    """Shared memory of this user that has a name, whoever made it."""
    found = set()
    for path in SHARED.iterdir() if SHARED.is_dir() else ():
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid():
                found.add(path)
    return found


def users(path: Path) -> list[psutil.Process]:
    """Processes that have it open or mapped. By its number: a semaphore is mapped under another name."""
    with contextlib.suppress(OSError):
        number = str(path.stat().st_ino)
        return [process for process in psutil.process_iter() if _uses(process, path.parent, number)]
    return []


def _uses(process: psutil.Process, folder: Path, number: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)  # range, rights, offset, device, inode, path
            if fields[4] == number and fields[-1].startswith(f"{folder}/"):
                return True
        return any(
            str(Path(file.path).stat().st_ino) == number
            for file in process.open_files()
            if file.path.startswith(f"{folder}/")
        )
    return False


def new_segments(before: set[Path]) -> set[Path]:
    """Those that this test run has made since: used by one of its processes, or left by all."""
    ours = {os.getpid(), *(process.pid for process in marked_processes())}
    found = set()
    for path in named_segments() - before:
        using = {process.pid for process in users(path)}
        if path.exists() and (using & ours or not using):
            found.add(path)
    return found


def described(processes: Sequence[psutil.Process]) -> str:
    """A line each: pid, command line, and the test that started it."""
    lines = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            test = process.environ().get("PYTEST_CURRENT_TEST", "?")
            lines.append(f"  {process.pid}: {' '.join(process.cmdline())[:120]} (of {test})")
    return "\n".join(lines)
