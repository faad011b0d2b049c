"""`dataloader-svc state`: what a checkpoint says of the data, compared and changed by hand.

A state is a JSON file (what `loader.state_dict()` gave, or the service's part of it), `-` for stdin, or a
job's YAML, which stands for the last step in its plan log.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from dataloader_svc.cli.output import console, examples, json_option, print_json, table
from dataloader_svc.cli.plan_log import PlanLog
from dataloader_svc.config.load import load_config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.errors import DataloaderError, StateError
from dataloader_svc.planner import state_edit
from dataloader_svc.planner.state import State
from dataloader_svc.store.open import open_existing

_where = click.argument("state", type=str)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """`whole` is the client's state_dict that holds it, where there is one."""

    state: State
    whole: dict[str, Any] | None = None

    def values(self, state: State) -> dict[str, Any]:
        """`state` in the form in which this one came."""
        service: dict[str, Any] = json.loads(state.to_json())
        if self.whole is None:
            return service
        return {**self.whole, "service": service, "step": state.step}


@click.group()
def command() -> None:
    """Show, compare and change the state of a job: what `loader.state_dict()` gives.

    Keep it readable in your checkpoints: json.dump(loader.state_dict(), file).
    """


@command.command(
    epilog=examples(
        "dataloader-svc state show checkpoint/loader.json",
        "dataloader-svc state show mixture.yaml          # the last planned step",
    )
)
@_where
@json_option
def show(state: str, *, as_json: bool) -> None:
    """How far each source has been read, what waits, and from which settings."""
    found = _read(state)
    if as_json:
        print_json(found.values(found.state))
        return
    now, out = found.state, console()
    inside = (
        ""
        if found.whole is None or not found.whole["microbatch"]
        else f", microbatch {found.whole['microbatch']}"
    )
    job = f"job {now.job}, " if now.job else ""
    out.print(f"{job}step {now.step}{inside}, seed {now.seed}, hash {now.hash()}")
    total = max(sum(source.tokens for source in now.sources.values()), 1)
    rows = [
        (
            name,
            source.epoch,
            source.position,
            source.samples,
            source.tokens,
            f"{source.tokens / total:.4f}",
            f"{source.credit:.1f}",
            sum(source.bad.values()),
        )
        for name, source in now.sources.items()
    ]
    names = ("source", ">epoch", ">position", ">samples", ">tokens", ">share", ">owed", ">bad")
    out.print(table("", names, rows))
    oldest = int(np.max(now.age, initial=0))
    tokens = int(np.sum(now.waiting.length))
    out.print(f"\nwaiting: {len(now.waiting)} pieces, {tokens} tokens, for {oldest} steps at most")
    if now.ended:
        out.print("the sources are at their end")
    for change in now.mixture:
        weights = " ".join(f"{name}={weight:.4g}" for name, weight in change.weights.items())
        over = f", reached over {change.over} steps" if change.over else ""
        out.print(f"mixture from step {change.at_step} on: {weights}{over}")
    for skip in now.skips:
        out.print(str(skip))


@command.command(
    epilog=examples(
        "dataloader-svc state diff step-1000.json step-2000.json",
        "dataloader-svc state diff checkpoint/loader.json mixture.yaml",
    )
)
@_where
@click.argument("other", type=str)
@json_option
def diff(state: str, other: str, *, as_json: bool) -> None:
    """What differs between two states. Ends with 1 where they differ, as `diff` does."""
    rows = state_edit.differences(_read(state).state, _read(other).state)
    if as_json:
        print_json([{"field": name, "before": before, "after": after} for name, before, after in rows])
    elif rows:
        console().print(table("", ("field", state, other), rows))
    else:
        console().print("equal")
    if rows:
        raise click.exceptions.Exit(1)


@command.command(
    epilog=examples(
        "dataloader-svc state edit loader.json --out new.json --at web=2:0      # from epoch 2 on",
        "dataloader-svc state edit loader.json --out new.json --restart captions",
        "dataloader-svc state edit loader.json --out new.json --remove old-crawl --forget-waiting",
    )
)
@_where
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; '-': stdout.",
    required=True,
)
@click.option(
    "--at", "places", multiple=True, metavar="SOURCE=EPOCH:POSITION", help="Read a source from here on."
)
@click.option("--restart", multiple=True, metavar="SOURCE", help="Read a source from its first sample on.")
@click.option("--remove", multiple=True, metavar="SOURCE", help="Forget a source.")
@click.option("--forget-waiting", is_flag=True, help="Drop what is drawn and not yet placed.")
def edit(
    state: str,
    out: Path,
    places: tuple[str, ...],
    restart: tuple[str, ...],
    remove: tuple[str, ...],
    *,
    forget_waiting: bool,
) -> None:
    """Write a changed state to resume from, and say what that repeats or leaves out.

    The original is left alone. A state in the middle of a step can't be changed.
    """
    found = _read(state)
    if found.whole is not None and found.whole["microbatch"]:
        raise StateError(
            f"{state}: was taken in the middle of step {found.state.step}: change one of a step's boundary"
        )
    moves = [_move(text) for text in places] + [state_edit.Move(name, 0, 0) for name in restart]
    changed, notes = state_edit.moved(found.state, moves)
    for more in (
        state_edit.without(changed, remove),
        state_edit.without_waiting(changed) if forget_waiting else None,
    ):
        if more is not None:
            changed, notes = more[0], [*notes, *more[1]]
    text = json.dumps(found.values(changed))
    if str(out) == "-":
        sys.stdout.write(text + "\n")
    else:
        out.write_text(text + "\n")
    for note in notes or ["nothing changed"]:
        click.echo(note, err=True)


def _move(text: str) -> state_edit.Move:
    name, _, place = text.rpartition("=")
    epoch, _, position = place.partition(":")
    if not name or not epoch.isdecimal() or not position.isdecimal():
        raise click.BadParameter(f"{text!r}: write SOURCE=EPOCH:POSITION, such as web=2:0", param_hint="--at")
    return state_edit.Move(name, int(epoch), int(position))


def _read(where: str) -> _Found:
    if where != "-" and Path(where).suffix in (".yaml", ".yml"):
        return _Found(_last_of(Path(where)))
    try:
        text = sys.stdin.read() if where == "-" else Path(where).read_text(encoding="utf-8")
        values = json.loads(text)
    except OSError as error:
        raise StateError(f"{where}: {error.strerror}") from None
    except ValueError:
        raise StateError(
            f"{where}: is no JSON. A state is what json.dump(loader.state_dict(), file) writes; take it out "
            "of a torch checkpoint first"
        ) from None
    whole = values if isinstance(values, dict) and isinstance(values.get("service"), dict) else None
    try:
        return _Found(State.from_json(json.dumps(values if whole is None else whole["service"])), whole)
    except DataloaderError as error:
        error.add_note(f"in {where}")
        raise


def _last_of(path: Path) -> State:
    loaded = load_config(path)
    spec = job_spec(loaded, loaded.base_dir, "127.0.0.1:0")
    opened = open_existing(spec.store, spec.base_dir)
    if opened is None:
        raise StateError(f"job {loaded.config.job!r} has no plan log yet: no trainer has joined")
    with closing(opened) as store:
        log = PlanLog.of(store)
        generation, stop = log.parts[0].generation, log.parts[0].stop
        if stop == generation.base.step:
            return generation.base
        return log.read(stop - 1, loaded.config.sequence_length)[1].state
