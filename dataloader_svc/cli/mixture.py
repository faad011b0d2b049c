"""`dataloader-svc mixture ADDRESS show|set`: the weights of a running job, and other ones from a step on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import click

import dataloader_client
from dataloader_client import MixtureChange, control
from dataloader_client._pb import control_service_pb2
from dataloader_client.credentials import Credentials
from dataloader_client.transport import Transport
from dataloader_svc.cli.output import console, examples, json_option, print_json, table
from dataloader_svc.errors import MixtureError

_ASK_S = 30.0


@click.group()
@click.argument("address")
@click.pass_context
def command(context: click.Context, address: str) -> None:
    """Show the mixture of the job that is served at ADDRESS, and change it while it runs.

    Where the service asks for a token or for TLS, they come from the environment as a trainer's do:
    DATALOADER_TOKEN, DATALOADER_TOKEN_FILE, DATALOADER_TLS_CA.
    """
    context.obj = address


@contextmanager
def _transport(address: str) -> Iterator[Transport]:
    with closing(Transport(address, timeout_s=_ASK_S, credentials=Credentials.of())) as transport:
        try:
            yield transport
        except dataloader_client.MixtureError as refused:
            raise MixtureError(str(refused)) from None  # what was typed is wrong: exit code 2


@command.command(
    name="set",
    epilog=examples(
        "dataloader-svc mixture localhost:7077 set web=0.4 captions=0.6",
        "dataloader-svc mixture localhost:7077 set web=0.4 captions=0.6 --at-step 5000",
        "dataloader-svc mixture localhost:7077 set web=0.4 captions=0.6 --ramp linear --over 1000",
    ),
)
@click.argument("weights", nargs=-1, required=True, metavar="SOURCE=WEIGHT...")
@click.option(
    "--at-step", type=click.IntRange(min=0), help="Default: the first step that is not planned yet."
)
@click.option(
    "--ramp",
    type=click.Choice(["none", "linear"]),
    default="none",
    help="linear: move evenly to these weights, over --over steps.",
)
@click.option("--over", type=click.IntRange(min=1), help="Steps that a linear ramp takes.")
@json_option
@click.pass_obj
def set_(
    address: str, weights: tuple[str, ...], at_step: int | None, ramp: str, over: int | None, *, as_json: bool
) -> None:
    """Draw the sources by other weights from a step on; those that are not named get none.

    Kept by the service's store before this command ends, and by every state_dict from the next step on.
    """
    if (ramp == "linear") != (over is not None):
        raise click.UsageError("--ramp linear and --over STEPS go together")
    asked = dict(map(_weight, weights))
    if len(asked) != len(weights):
        raise click.BadParameter("a source is named twice", param_hint="SOURCE=WEIGHT")
    with _transport(address) as transport:
        made = control.set_mixture(transport, asked, at_step=at_step, over=over or 0, timeout_s=_ASK_S)
    if as_json:
        print_json({"at_step": made.at_step, "over": made.over, "weights": dict(made.weights)})
    else:
        console().print(_words(made))


def _words(made: MixtureChange) -> str:
    when = f"from step {made.at_step} on"
    if made.over:
        when = f"reached evenly from step {made.at_step} to step {made.at_step + made.over}"
    return f"{_shares(made.weights)}, {when}"


def _weight(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        weight = float(value)
    except ValueError:
        name = ""
    if not name:
        raise click.BadParameter(f"{text!r}: write SOURCE=WEIGHT, such as web=0.4", param_hint="WEIGHT")
    return name, weight


@command.command(epilog=examples("dataloader-svc mixture localhost:7077 show"))
@json_option
@click.pass_obj
def show(address: str, *, as_json: bool) -> None:
    """The weights now and to come, what was drawn so far, and the changes that were made."""
    with _transport(address) as transport:
        status = control.show_mixture(transport, timeout_s=_ASK_S)
    if as_json:
        print_json(_values(status))
        return
    out = console()
    out.print(f"step {status.next_step} is planned next; weights are shares of {status.unit}")
    names = sorted({*status.drawn, *status.weights})
    rows = [(name, f"{status.weights[name]:.4f}", f"{status.drawn[name]:.4f}") for name in names]
    out.print(table("", ("source", ">weight now", ">drawn so far"), rows))
    if status.HasField("adaptive"):
        for line in _adaptive_lines(status.adaptive):
            out.print(line)
    out.print("\nschedule")
    for entry in status.schedule:
        out.print(f"  step {entry.step}{', linear' if entry.ramp else ''}: {_shares(entry.weights)}")
    out.print("\nchanges made while it runs" if status.changes else "\nnone of it was changed while it runs")
    for change in status.changes:
        made = MixtureChange(change.at_step, change.weights, change.over)
        who = f"made by {change.rule}" if change.rule else "asked for"
        out.print(f"  {_words(made)} ({who} at step {change.known_from})")


def _adaptive_lines(now: control_service_pb2.AdaptiveStatus) -> Iterator[str]:
    """How weights follow losses."""
    yield (
        f"\nfollows losses by {now.rule}: those of steps before {now.next} decide next; of them, "
        f"{now.reported} steps were reported, by {now.ranks} of {now.expected} ranks"
    )
    if now.losses:
        losses = " ".join(f"{name}={now.losses[name]:.4f}" for name in sorted(now.losses))
        yield f"  decided last, at step {now.decided}, by {losses}"
    if now.refused:
        yield f"  {now.refused} numbers were no losses, and left out (see the planner's log)"
    if now.problem:
        yield f"  weights stay as they are: {now.problem}"


def _values(status: control_service_pb2.MixtureStatus) -> dict[str, Any]:
    return {
        "next_step": status.next_step,
        "unit": status.unit,
        "weights": dict(status.weights),
        "drawn": dict(status.drawn),
        "schedule": [
            {"step": each.step, "ramp": "linear" if each.ramp else "none", "weights": dict(each.weights)}
            for each in status.schedule
        ],
        "changes": [
            {
                "at_step": each.at_step,
                "over": each.over,
                "weights": dict(each.weights),
                "asked_at": each.known_from,
                **({"rule": each.rule} if each.rule else {}),
            }
            for each in status.changes
        ],
        **({"adaptive": _adaptive_values(status.adaptive)} if status.HasField("adaptive") else {}),
    }


def _adaptive_values(now: control_service_pb2.AdaptiveStatus) -> dict[str, Any]:
    fields = ("rule", "decided", "next", "reported", "ranks", "expected", "refused", "problem")
    return {**{name: getattr(now, name) for name in fields}, "losses": dict(now.losses)}


def _shares(weights: Mapping[str, float]) -> str:
    return " ".join(f"{name}={weights[name]:.4g}" for name in sorted(weights))
