"""Runs a planner core without processes, network or time: scripted sources answer its actions.

For tests of planning, golden traces and examples. `PlanDriver` carries out what the core asks for, in order
or in an order that a test chooses, keeps the plans, and writes down each event and what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dataloader_svc.config.schema import Config
from dataloader_svc.planner import core
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.select import Rules
from dataloader_svc.planner.state import State
from dataloader_svc.testing.scripted_loader import ScriptedSources


def plan_config(
    weights: Mapping[str, float] | Sequence[Mapping[str, Any]],
    *,
    sequences: int = 2,
    samples: int | None = None,
    sequence_length: int = 32,
    source: Mapping[str, Any] | None = None,
    mixture: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Config:
    """A configuration over text sources that no file stands behind.

    weights   name -> weight, or a whole schedule; `source` and `mixture` add fields to each of them
    samples   the size of a step, instead of `sequences`
    """
    entries = [{"step": 0, **weights}] if isinstance(weights, Mapping) else list(weights)
    names = sorted({name for entry in entries for name in entry if name not in ("step", "ramp")})
    return Config.model_validate(
        {
            "job": "scripted",
            "tokenizer": "tokenizer.json",
            "sequence_length": sequence_length,
            "global_batch": {"sequences": sequences} if samples is None else {"samples": samples},
            "sources": {
                name: {"format": "jsonl", "path": f"{name}.jsonl", "text": "text", **(source or {})}
                for name in names
            },
            "mixture": {"schedule": entries, **(mixture or {})},
            **fields,
        }
    )


class PlanDriver:
    """A core and its surroundings. `plans` in order of step; `trace` a line an event and an action.

    choose   which of the actions that are open is carried out next, given their number: default the oldest
    """

    def __init__(
        self,
        config: Config,
        sources: ScriptedSources,
        *,
        state: State | None = None,
        choose: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self.rules = Rules.of(config)
        self.core = core.PlannerCore(self.rules, ahead=config.planner.ahead)
        self.sources = sources
        self.plans: list[Plan] = []
        self.released: list[str] = []
        self.ended: core.EndOfData | None = None
        self.trace: list[str] = []
        self._open: list[core.Action] = []
        self._choose = choose
        self._done_below = 0
        base = state or State.initial(self.rules.names, seed=config.seed, config={})
        self.apply(core.Based(base))

    def run(self, up_to: int, *, done_below: int | None = None) -> list[Plan]:
        """Demand steps up to `up_to`; the plans published by then. Raises what the core stops with."""
        self._done_below = self._done_below if done_below is None else done_below
        self.apply(core.Demanded(up_to, self._done_below))
        while self._open:
            self._do(self._open.pop(self._choose(len(self._open))))
        self.plans.sort(key=lambda plan: plan.step)
        return self.plans

    def apply(self, event: core.Event) -> list[core.Action]:
        """One event; its actions wait to be carried out."""
        self.trace.append(f"> {_event_text(event)}")
        actions = self.core.apply(event)
        self.core.validate()
        self.trace += [f"    {action_text(action)}" for action in actions]
        self._open += actions
        return actions

    def _do(self, action: core.Action) -> None:
        match action:
            case core.Describe(source, epoch):
                starts = self.sources.block_starts(source)
                self.apply(core.Described(source, epoch, starts, self.sources.digest))
            case core.Lease(block) | core.Reread(block):
                self.apply(core.Probed(self.sources.probe(block)))
            case core.Append(plan):
                self.apply(core.Appended(plan.step))
            case core.Publish(plan):
                self.plans.append(plan)
            case core.Release(block):
                self.released.append(str(block))
            case core.EndOfData():
                self.ended = action
            case core.Stop(error):
                raise error


def action_text(action: core.Action) -> str:
    """One line that a person can read."""
    match action:
        case core.Describe(source, epoch):
            return f"describe {source}/{epoch}"
        case core.Lease(block):
            return f"lease {block}"
        case core.Reread(block):
            return f"read {block} again"
        case core.Append(plan):
            return f"append {plan_text(plan)}"
        case core.Publish(plan):
            return f"publish step {plan.step}"
        case core.Release(block):
            return f"release {block}"
        case core.EndOfData(step, tokens, samples):
            return f"no step {step}: the data has ended, {tokens} tokens of {samples} samples left over"
        case core.Stop(error):
            return f"stop {type(error).__name__}: {error}"


def plan_text(plan: Plan) -> str:
    """`step 3 [web/0/1 web/0/2+8:4] [...] skipped cap/0/7 empty_text; waiting ...; last`."""
    state = plan.state
    rows = zip(*(getattr(plan.pieces, c).tolist() for c in _NAME_COLUMNS), strict=True)
    pieces = [_piece_text(plan.sources, *row) for row in rows]
    offsets = plan.sequence_offsets.tolist()
    text = f"step {plan.step} " + " ".join(
        f"[{' '.join(pieces[low:high])}]" for low, high in zip(offsets, offsets[1:], strict=False)
    )
    for source, epoch, position in plan.readmitted:
        text += f"; readmitted {plan.sources[source]}/{epoch}/{position}"
    for source, epoch, row in plan.skipped:
        text += f"; skipped {plan.sources[source]}/{epoch}/{row.position} {row.reason}"
    if len(state.waiting):
        rows = zip(*(getattr(state.waiting, c)[:_MOST_SHOWN].tolist() for c in _NAME_COLUMNS), strict=True)
        text += f"; waiting {' '.join(_piece_text(plan.sources, *row) for row in rows)}"
        if len(state.waiting) > _MOST_SHOWN:
            text += f" and {len(state.waiting) - _MOST_SHOWN} more"
    return text + ("; last" if plan.last else "")


_MOST_SHOWN = 12  # of what waits; a very long document leaves thousands of pieces

_NAME_COLUMNS = ("source", "epoch", "position", "start", "length")


def _piece_text(
    sources: Sequence[str], source: int, epoch: int, position: int, start: int, length: int
) -> str:
    return f"{sources[source]}/{epoch}/{position}{f'+{start}' if start else ''}:{length}"


def _event_text(event: core.Event) -> str:
    match event:
        case core.Based(state):
            return f"based on step {state.step}"
        case core.Described(source, epoch, starts):
            return f"described {source}/{epoch}: {int(starts[-1])} rows in {len(starts) - 1} blocks"
        case core.Probed(probe):
            tokens = " ".join("bad" if n == 0 else str(n) for n in probe.tokens.tolist())
            return f"probed {probe.block}: {tokens}"
        case core.Demanded(up_to, done_below):
            return f"demanded up to step {up_to}, done below {done_below}"
        case core.Appended(step):
            return f"appended step {step}"
        case core.Failed(error):
            return f"failed {type(error).__name__}: {error}"
        case core.Requested(requests):
            names = [f"{asked.sample}" for request in requests for asked in request.samples]
            return f"requested {' '.join(names)}"
        case core.Opened(step):
            return f"opened at step {step}"
        case core.Mixed(changes):
            return f"mixed {' '.join(f'{change.weights} from step {change.at_step}' for change in changes)}"
