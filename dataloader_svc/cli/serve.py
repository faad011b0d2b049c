"""`dataloader-svc serve`: run a job's processes until told to stop."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

from dataloader_svc import __version__
from dataloader_svc.cli.output import config_argument, examples, progress_console
from dataloader_svc.cli.preflight import load_checked
from dataloader_svc.config.schema import Config
from dataloader_svc.engine.job import Job
from dataloader_svc.engine.owner import end_with
from dataloader_svc.engine.spec import job_spec, private
from dataloader_svc.store.base import shown

log = logging.getLogger(__name__)

DEFAULT_ADDRESS = "127.0.0.1:7077"


@click.command(
    epilog=examples(
        "dataloader-svc serve mixture.yaml",
        "dataloader-svc serve mixture.yaml --address 127.0.0.1:0 --json",
        "dataloader-svc serve mixture.yaml --store sqlite:////var/lib/loader/job.db",
        "dataloader-svc serve mixture.yaml --take-over",
    )
)
@config_argument
@click.option(
    "--address", default=DEFAULT_ADDRESS, show_default=True, help="HOST:PORT to listen on; port 0: any."
)
@click.option(
    "--take-over",
    is_flag=True,
    help="From the service that serves the job now, at its address whatever --address says: that one ends, "
    "trainers read on.",
)
@click.option("--store", help="State store, instead of the configured one.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Keep the processes' logs in this folder.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON when ready: address, job, pids."
)
@click.option(
    "--embedded-in",
    type=int,
    metavar="PID",
    help="For the program that starts this, as its parent PID: end with it, with a token and, unless --store "
    "says otherwise, a state store of this run alone. The token is in the line of --json.",
)
def command(
    config: Path,
    address: str,
    store: str | None,
    run_dir: Path | None,
    embedded_in: int | None,
    *,
    take_over: bool,
    as_json: bool,
) -> None:
    """Start the service, print its address, and run until Ctrl-C or SIGTERM.

    Trainers connect with DataServiceLoader("HOST:PORT"). What was delivered stands in the state store: a
    service that was stopped or killed goes on where it was. Exit code 0 when it was stopped while it served,
    130 when before that.
    """
    with _stop_on_signals() as signals, _folder(run_dir) as folder:
        if embedded_in is not None:
            end_with(embedded_in)
            store = store or f"sqlite:///{folder / 'job.db'}"
        log.info("reading %s", config)
        loaded = load_checked(config)
        spec = job_spec(loaded, folder, address, store)
        if embedded_in is not None:
            spec = private(spec)
        job = Job(spec, take_over=take_over)
        signals.go_to(job.interrupt)
        with progress_console().status(f"starting {loaded.config.job}"):
            job.__enter__()
        try:
            _announce(job, as_json=as_json, with_token=embedded_in is not None)
            job.wait()
        except KeyboardInterrupt:
            sys.stderr.write("stopping\n")
        finally:
            job.stop()


def _announce(job: Job, *, as_json: bool, with_token: bool) -> None:
    config = job.spec.config
    if as_json:
        pids = {name: status.pid for name, status in job.roles().items()}
        values: dict[str, Any] = {
            "address": job.address,
            "job": config.job,
            "pids": pids,
            "version": __version__,
        }
        if with_token:
            values["token"] = job.token
        sys.stdout.write(json.dumps(values) + "\n")
    else:
        sys.stdout.write(
            f"serving {config.job} at {job.address}: {len(config.sources)} sources, "
            f"{_step(config)} a step\n"
            f"  trainers:  DataServiceLoader({job.address!r}{_shown_by_trainers(config)})\n"
            f"  state:     {shown(job.spec.store)}\n"
            f"  logs:      {job.spec.run_dir / 'logs'}\n"
            "  Ctrl-C stops it; nothing that was delivered is forgotten\n"
        )
    sys.stdout.flush()


def _shown_by_trainers(config: Config) -> str:
    """Of `security`, without any secret."""
    security = config.security
    token = "" if security.token is None and security.token_file is None else ", token=..."
    if security.tls is None:
        return token
    mutual = "" if security.tls.client_ca is None else ", certificate=..., key=..."
    return f"{token}, tls=TLS(ca=...{mutual})"


def _step(config: Config) -> str:
    if config.num_sequences is None:
        return f"{config.global_batch.samples} samples in sequences of up to {config.sequence_length} tokens"
    return f"{config.num_sequences} sequences of {config.sequence_length} tokens"


@contextlib.contextmanager
def _folder(run_dir: Path | None) -> Iterator[Path]:
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix="dataloader-svc-") as folder:
        yield Path(folder)


class _Signals:
    """SIGINT and SIGTERM: the first ends the command, later ones don't disturb the ending.

    While the configuration is read it raises KeyboardInterrupt, and then it goes to `go_to`: a running job
    is not to be interrupted at any line.
    """

    def __init__(self) -> None:
        self._heard = False
        self._act: Callable[[], None] | None = None

    def go_to(self, act: Callable[[], None]) -> None:
        """From now on. KeyboardInterrupt: there was one, which something on its way has passed over."""
        self._act = act
        if self._heard:
            raise KeyboardInterrupt

    def hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's signature
        """The handler."""
        first, self._heard = not self._heard, True
        if self._act is not None:
            self._act()
        elif first:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[_Signals]:
    """Handlers of Python, not SIG_IGN, which a role that is being started would inherit and not hear us."""
    signals = _Signals()
    before = [(number, signal.signal(number, signals.hear)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield signals
    finally:
        for number, handler in before:
            signal.signal(number, handler)
