"""What the planner does next: events in, actions out. The only owner of a job's position.

`PlannerCore.apply(event)` is the one door; `service.py` carries the actions out and reports back as events.
It knows no network, no clock and no mesh. What it guarantees:

- one record at a time goes to the log, in order of step, and is published only when it is there (`Appended`);
- a step is a function of the rules, the state before it and the data: never of the order of events;
- blocks are leased before they are needed, and released when no plan that is still in use names them.

Life of a step: it is demanded; lacking blocks are leased; selected; `Append` -> `Appended` -> `Publish`.
Where the data can end (`exhausted` is not repeat), a step goes to the log only when the next is known, so
that the last one says that it is. A `Stop` ends everything until the next `Based`.
"""

from __future__ import annotations

from dataclasses import replace

from dataloader_svc.errors import DataError, DataloaderError, SourceError, StateError
from dataloader_svc.planner import listings
from dataloader_svc.planner.change import Change, with_new, without_past
from dataloader_svc.planner.events import (
    Action,
    Append,
    Appended,
    Based,
    Demanded,
    Describe,
    Described,
    EndOfData,
    Event,
    Failed,
    Lease,
    Mixed,
    Opened,
    Probed,
    Publish,
    Release,
    Requested,
    Reread,
    Stop,
)
from dataloader_svc.planner.lease import Lookahead
from dataloader_svc.planner.pieces import TooLongError, cut
from dataloader_svc.planner.plan import Plan, blocks_of
from dataloader_svc.planner.readmit import Readmissions
from dataloader_svc.planner.select import Ended, Needed, Rules, Selected, select
from dataloader_svc.planner.state import State
from dataloader_svc.planner.supply import Epoch, Lack, Supply
from dataloader_svc.sample import BlockId, Listing, ProbeColumns

__all__ = [
    "Action",
    "Append",
    "Appended",
    "Based",
    "Demanded",
    "Describe",
    "Described",
    "EndOfData",
    "Event",
    "Failed",
    "Lease",
    "Mixed",
    "Opened",
    "PlannerCore",
    "Probed",
    "Publish",
    "Release",
    "Requested",
    "Reread",
    "Stop",
]


class PlannerCore:
    """See the module. `ahead`: steps for which blocks are leased beyond the step planned next."""

    def __init__(self, rules: Rules, *, ahead: int) -> None:
        self._rules = rules
        self._ahead = ahead
        self._changes: tuple[Change, ...] = ()  # of the mixture, that the history knows
        self._mixed: tuple[Change, ...] = ()  # those that the two below have
        self._now, self._lookahead = rules, Lookahead(rules, ahead)
        self._supplies = {name: Supply(name) for name in rules.names}
        self._bases = 0
        self._state: State | None = None  # after the last step in the log
        self._selected: list[Selected] = []  # steps after it, not in the log
        self._appending: Plan | None = None
        self._end: EndOfData | None = None
        self._stopped: DataloaderError | None = None
        self._demand = Demanded(-1, 0)
        self._describing: set[Epoch] = set()
        self._leased: set[BlockId] = set()  # not answered
        self._lacking: set[Lack] = set()
        self._last_use: dict[BlockId, int] = {}
        self._readmissions = Readmissions(rules)

    @property
    def state(self) -> State | None:
        """After the last step in the log; None before `Based`."""
        return self._state

    @property
    def base(self) -> int:
        """How many times planning has gone on from another state."""
        return self._bases

    @property
    def appending(self) -> Plan | None:
        """The plan that is on its way to the log."""
        return self._appending

    @property
    def stopped(self) -> DataloaderError | None:
        """Why nothing more is planned."""
        return self._stopped

    @property
    def asked(self) -> int:
        """The last request for readmission that is not done; 0 where there is none."""
        return 0 if self._state is None else self._readmissions.last(self._state)

    @property
    def end(self) -> int | None:
        """The step that does not exist for want of data, once it is known."""
        return None if self._end is None else self._end.step

    def apply(self, event: Event) -> list[Action]:
        """Take an event in; what is to be done about it, in this order."""
        actions: list[Action] = []
        names = self._rules.names  # of sources for which more may have to be leased
        try:
            match event:
                case Based():
                    actions += self._based(event)
                case Described():
                    self._described(event)
                    more = any(epoch.source == event.source for epoch in self._describing)
                    names = () if more else (event.source,)
                case Probed(probe, listing):
                    # What is leased was reckoned with; only the first block tells what a row is.
                    first = not self._supplies[probe.block.source].blocks
                    names = (probe.block.source,) if first else ()
                    self._probed(probe, listing)
                case Demanded(up_to, done_below):
                    self._demand = Demanded(max(up_to, self._demand.up_to), done_below)
                case Appended(step):
                    actions += self._appended(step)
                case Failed():
                    self._failed(event)
                case Requested(requests):
                    self._readmissions.take(requests)
                case Opened():
                    self._opened(event)
                case Mixed(changes):
                    # What is not in the log is selected again; nobody has seen it.
                    self._changes, self._selected, self._appending = changes, [], None
                    self._lacking = set()
            if self._state is not None and self._stopped is None:
                actions += self._go_on(names)
        except DataloaderError as error:
            self._stopped = error
            actions.append(Stop(error))
        return actions

    # ---- events

    def _based(self, event: Based) -> list[Action]:
        assert event.state.names == self._rules.names, "the state was adapted to the configuration"
        self._bases += 1
        if event.files_changed or isinstance(self._stopped, StateError):
            self._supplies = {name: Supply(name) for name in self._rules.names}
            self._describing, self._leased = set(), set()
        self._state, self._stopped, self._end = event.state, None, None
        self._selected, self._appending = [], None
        self._lacking = set()
        self._demand = Demanded(-1, 0)
        self._last_use.update(event.used)
        self._readmissions.begin()
        self._changes = ()
        for name, source in event.state.sources.items():
            listings.forget_others(self._supplies[name], source)
        return self._releases(0)

    def _opened(self, event: Opened) -> None:
        """Nobody reads at the end of the data now: it may move."""
        self._readmissions.open(event.step, event.below)
        at_end = self._end is not None and self._end.step == event.step and not self._selected
        if at_end and self._state is not None and self._readmissions.left(self._state):
            self._end = None

    def _described(self, event: Described) -> None:
        epoch = Epoch(event.source, event.epoch)
        self._describing.discard(epoch)
        self._lacking.discard(epoch)
        if int(event.block_starts[-1]) == 0:
            raise SourceError(
                f"source {event.source!r} is empty: its shards hold no rows. Remove it from the "
                f"configuration, or check sources.{event.source}.path"
            )
        assert self._state is not None, "a layout is asked for by a state"
        name, source = event.source, self._state.sources[event.source]
        if not listings.described(self._supplies[name], source, event):
            then = source.listing(event.epoch).digest
            raise StateError(
                f"source {name!r}: its files are not those of the state (index {event.digest}, then {then}): "
                "positions name other samples. Restore them, or start without the state"
            )

    def _failed(self, event: Failed) -> None:
        """What an earlier base asked for may ask for files that this one does not: it is asked again."""
        if event.base == self._bases:
            raise event.error
        if isinstance(event.what, Describe):
            self._describing.discard(Epoch(event.what.source, event.what.epoch))
        else:
            self._leased.discard(event.what.block)

    def _probed(self, probe: ProbeColumns, listing: Listing) -> None:
        block, rules = probe.block, self._rules
        self._leased.discard(block)
        if listing.digest not in ("", self._listing(block).digest):
            return  # planning has gone on from another state meanwhile
        self._readmissions.read(block)
        self._lacking.discard(block)
        try:
            rule, apart = rules.too_long[block.source], rules.cuts(block.source)
            pieces = cut(probe, rule, rules.room, apart=apart)
        except TooLongError as error:
            raise DataError(
                f"source {block.source!r}: the sample at epoch {block.epoch} position {error.position} has "
                f"{error.detail}, and too_long is `error`: choose split, truncate or drop, or raise the limit"
            ) from None
        self._supplies[block.source].blocks[block.epoch, block.block] = pieces

    def _appended(self, step: int) -> list[Action]:
        plan = self._appending
        if plan is None or plan.step != step:
            return []  # of a generation that has been left
        self._appending = None
        self._state = self._selected.pop(0).state
        for block in plan.blocks():
            self._last_use[block] = step
        return [Publish(plan)]

    # ---- going on

    def _go_on(self, names: tuple[str, ...]) -> list[Action]:
        if self._demand.up_to < 0:
            return []  # nobody has joined: nothing is read
        all_names, selected = self._rules.names, len(self._selected)
        actions = self._releases(self._demand.done_below) if names is all_names else []
        if not self._lacking:
            actions += self._plan_next()
        return actions + self._prepare(names if len(self._selected) == selected else all_names)

    def _plan_next(self) -> list[Action]:
        """Select the next step where it is wanted and can be, and send it to the log."""
        state = self._state
        assert state is not None
        if self._appending is not None or state.step > self._demand.up_to:
            return []
        unknown = (self._supplies[name].layouts.get(at.epoch) is None for name, at in state.sources.items())
        if not state.ended and any(unknown):
            return []  # all sources are described first, so that the state never depends on who was quicker
        actions = self._select()
        ready = 1 if self._rules.exhausted == "repeat" or self._end is not None else 2
        if len(self._selected) < ready:
            return actions
        first = self._selected[0]
        last = self._end is not None and self._end.step == first.step + 1
        self._appending = Plan.of(first, self._rules.sequence_length, last=last)
        return [*actions, Append(self._appending)]

    def _select(self) -> list[Action]:
        """Fill `_selected`: one step, and the one after it where the data can end there."""
        depth = 1 if self._rules.exhausted == "repeat" else 2
        while len(self._selected) < depth and self._end is None:
            state = self._with_indexes(self._selected[-1].state if self._selected else self._state)
            state = replace(state, mixture=with_new(state.mixture, self._changes, state.step))
            admission = self._readmissions.admit(state, self._supplies)
            if isinstance(admission, Needed):
                self._lacking = set(admission.lacking)
                return []
            result = select(self._rules_for(state), admission.state, self._supplies)
            match result:
                case Selected():
                    skipped = (*admission.skipped, *result.skipped)
                    after = replace(
                        result.state, mixture=without_past(result.state.mixture, result.state.step)
                    )
                    self._selected.append(
                        replace(result, skipped=skipped, readmitted=admission.readmitted, state=after)
                    )
                case Needed(lacking):
                    self._lacking = set(lacking)
                    return []
                case Ended(left_tokens, left_samples):
                    self._end = EndOfData(state.step, left_tokens, left_samples)
                    return [self._end]
        return []

    def _rules_for(self, state: State) -> Rules:
        """The rules with the changes of the mixture that `state` carries."""
        if state.mixture != self._mixed:
            self._mixed = state.mixture
            self._now = replace(self._rules, schedule=self._rules.schedule.changed(state.mixture))
            self._lookahead = Lookahead(self._now, self._ahead)
        return self._now

    def _with_indexes(self, state: State | None) -> State:
        assert state is not None
        if all(source.index for source in state.sources.values()):
            return state
        sources = dict(state.sources)
        for name, source in state.sources.items():
            if not source.index:
                found = self._supplies[name].listings[source.epoch]
                sources[name] = replace(source, index=found.digest, shards=found.shards)
        return replace(state, sources=sources)

    def _prepare(self, names: tuple[str, ...]) -> list[Action]:
        """Ask for what is lacking, and for what sources `names` will lack soon."""
        state = self._selected[-1].state if self._selected else self._state
        assert state is not None
        wanted: list[Lack] = sorted(self._lacking, key=str)
        if self._end is None and not state.ended:
            self._rules_for(replace(state, mixture=with_new(state.mixture, self._changes, state.step)))
            wanted += self._lookahead.wanted(state, names, self._supplies, self._leased)
        actions: list[Action] = []
        for lack in wanted:
            if isinstance(lack, Epoch):
                if lack not in self._describing:
                    supply, source = self._supplies[lack.source], state.sources[lack.source]
                    asking = listings.describe(supply, source, lack.epoch, self._describing)
                    if asking is not None:
                        self._describing.add(lack)
                        actions.append(asking)
            elif lack in self._leased:
                continue
            elif self._readmissions.stale(lack):
                self._supplies[lack.source].blocks.pop((lack.epoch, lack.block), None)
                self._readmissions.rereading(lack)
                self._leased.add(lack)
                actions.append(Reread(lack, self._listing(lack)))
            elif not self._at_hand(lack):
                self._leased.add(lack)
                actions.append(Lease(lack, self._listing(lack)))
        return actions

    def _listing(self, block: BlockId) -> Listing:
        """The shards that its epoch is made of."""
        assert self._state is not None, "a block is leased for a state"
        known = self._supplies[block.source].listings.get(block.epoch)
        return self._state.sources[block.source].listing(block.epoch) if known is None else known

    def _at_hand(self, block: BlockId) -> bool:
        return (block.epoch, block.block) in self._supplies[block.source].blocks

    def _releases(self, done_below: int) -> list[Action]:
        """Forget blocks that are drawn to the end, of which nothing waits, and whose last plan is used up."""
        state = self._state
        assert state is not None
        waiting = blocks_of(state.names, state.waiting) | self._readmissions.held(state)
        actions: list[Action] = []
        for name, supply in self._supplies.items():
            source = state.sources[name]
            place = (source.epoch, source.position)
            for (epoch, number), block in list(supply.blocks.items()):
                used_up = (epoch, block.stop) <= place and block.block not in waiting
                if used_up and self._last_use.get(block.block, -1) < done_below:
                    del supply.blocks[epoch, number]
                    self._last_use.pop(block.block, None)
                    actions.append(Release(block.block))
            for epoch in [epoch for epoch in supply.layouts if epoch < source.epoch]:
                del supply.layouts[epoch]
                supply.listings.pop(epoch, None)
        return actions

    def validate(self) -> None:
        """AssertionError where an invariant does not hold. For tests."""
        at_hand = {block.block for supply in self._supplies.values() for block in supply.blocks.values()}
        assert not at_hand & self._leased, "a leased block is not at hand"
        if self._state is None:
            assert not self._selected, "nothing is selected before a base"
            assert self._appending is None, "nothing is written before a base"
            return
        for step, selected in enumerate(self._selected, self._state.step):
            assert selected.step == step, "selected steps follow the log without a gap"
        if self._appending is not None:
            assert self._appending.step == self._state.step, "only the next step goes to the log"
        for source in self._state.sources.values():
            assert source.position >= 0, "a position is not negative"
            assert source.tokens >= source.samples, "a sample has a token or more"
        owed = sum(source.credit for source in self._state.sources.values())
        size = max(self._state.largest, 1)
        assert abs(owed) < 1e-3 * size, f"credits sum to {owed}, not 0"
        if self._end is not None:
            assert self._end.step == self._state.step + len(self._selected), (
                "the end follows what is selected"
            )
