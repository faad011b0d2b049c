"""The command group. A command's module is imported when it is used: `--help` stays fast."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import click

from dataloader_svc import __version__
from dataloader_svc.engine.importing import uncollected

COMMANDS: dict[str, str] = {
    "serve": "Start the service and print its address.",
    "check": "Open every source, map every field, estimate tokens; all problems at once.",
    "formats": "What can be read, and the options of each format.",
    "preview": "See packed sequences: documents, text, pictures.",
    "simulate": "What strategies would do: step time, idle share and imbalance, before a job runs.",
    "explain": "Which rows of which shards a step and rank get, and why there.",
    "bench": "Batches, tokens and bytes a second, and who waited for whom.",
    "audit": "Run steps on several meshes in real processes and prove the contracts.",
    "quarantine": "Samples that could not be used: list them by reason, export them.",
    "state": "Show, compare and change the state that a checkpoint holds.",
    "mixture": "Show the mixture of a running job, and change it from a step on.",
    "incidents": "Documents that two tokenizers encode differently.",
}


class LazyGroup(click.Group):
    """Lists COMMANDS without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        with _end_on_interrupt(), uncollected():
            module = importlib.import_module(f"dataloader_svc.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@contextlib.contextmanager
def _end_on_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process at once: there is nothing to put away yet, and an import that is interrupted
    ends in whatever error the half-made module meets next.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - signal's signature
        sys.stderr.write("interrupted\n")
        os._exit(130)

    before = [(each, signal.signal(each, end)) for each in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dataloader-svc")
@click.option("--debug", is_flag=True, help="Show tracebacks and debug logs.")
@click.option("-v", "--verbose", is_flag=True, help="Show what the service does.")
def app(*, debug: bool, verbose: bool) -> None:
    """Multimodal data loading as a service.

    \b
    dataloader-svc check mixture.yaml       is everything there, and what is in it?
    dataloader-svc serve mixture.yaml       run it; trainers connect to the printed address
    """  # noqa: D301 - \b is click's mark for text that must not be re-wrapped
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
