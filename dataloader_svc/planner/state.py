"""The state of a job between two steps: all that is needed to go on, as JSON of a few kilobytes.

`State` is immutable. It is what `state_dict()` gives to trainers, what stands in every record of the plan
log, and what a generation of the log begins from. Equal states give equal plans for ever after.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config.digest import first_name, renamings
from dataloader_svc.errors import StateError
from dataloader_svc.planner.change import Change, in_force
from dataloader_svc.planner.pieces import Pieces
from dataloader_svc.planner.skip import Skip
from dataloader_svc.planner.state_json import (
    HASHED_VERSION,
    READ_VERSIONS,
    config_of,
    credits_of,
    cut_each,
    listing_of,
    to_values,
    waiting_of,
)
from dataloader_svc.sample import Listing


@dataclass(frozen=True, slots=True)
class SourceState:
    """How far a source has been drawn: positions below `position` of `epoch`, and all epochs before.

    samples, tokens   drawn since the job began; skipped ones do not count
    credit   what the mixture owes it (less than 0: it is ahead), in the mixture's unit
    index    digest of its index, of the `shards` of which `epoch` is made; "" until a loader has described it
    before   (last epoch, shards, digest) of the lists of shards of earlier epochs, oldest first
    bad      skipped samples by reason, without those that a `too_long` rule dropped
    """

    epoch: int = 0
    position: int = 0
    samples: int = 0
    tokens: int = 0
    credit: float = 0.0
    index: str = ""
    bad: Mapping[str, int] = field(default_factory=dict)
    shards: int = 0
    before: tuple[tuple[int, int, str], ...] = ()

    def listing(self, epoch: int) -> Listing:
        """The shards of an epoch that was begun; of a later one, no digest."""
        for last, shards, digest in self.before:
            if epoch <= last:
                return Listing(shards, digest)
        return Listing(self.shards, self.index) if epoch <= self.epoch else Listing()

    @property
    def listings(self) -> tuple[Listing, ...]:
        """All of them, newest last."""
        before = (Listing(shards, digest) for _, shards, digest in self.before)
        return (*before, Listing(self.shards, self.index))

    def reached(self, epoch: int, listings: Mapping[int, Listing]) -> SourceState:
        """In `epoch`, with the shards of the epochs up to it: those of before are kept where they differ."""
        before, now = list(self.before), Listing(self.shards, self.index)
        for number in range(self.epoch + 1, epoch + 1):
            found = listings.get(number, now)
            if found.digest != now.digest:
                before.append((number - 1, *now))
                now = found
        return replace(self, epoch=epoch, before=tuple(before), shards=now.shards, index=now.digest)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """`step` is the next step to select.

    sources   by name, sorted: columns of pieces index into this order
    waiting   pieces that are drawn and not yet placed, oldest first; `age` int64 (n,) steps that each waited
    largest   largest sample drawn so far, in the mixture's unit: the size of "within one sample"
    ended     no source gives anything any more: only what waits is left
    readmitted   (number, done): requests for readmission below `number` are done, of that one `done` samples
    config    hashes of the settings that change what is read (`config.digest.read_digest`)
    job       name of the job that it was taken in; "": by an earlier version of the service
    skips     steps that nobody reads, ascending
    mixture   changes of the mixture that were made while the job ran, as far as they count for coming steps
    """

    seed: int
    step: int
    sources: Mapping[str, SourceState]
    config: Mapping[str, str]
    waiting: Pieces = field(default_factory=Pieces.empty)
    age: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    largest: int = 0
    ended: bool = False
    readmitted: tuple[int, int] = (0, 0)
    mixture: tuple[Change, ...] = ()
    skips: tuple[Skip, ...] = ()
    job: str = ""

    def __post_init__(self) -> None:
        assert list(self.sources) == sorted(self.sources), "sources stand in order of name"
        assert len(self.age) == len(self.waiting), "every waiting piece has an age"

    @classmethod
    def initial(cls, names: tuple[str, ...], *, seed: int, config: Mapping[str, str]) -> Self:
        """Before the first step of a job."""
        return cls(seed, 0, {name: SourceState() for name in sorted(names)}, config)

    @property
    def names(self) -> tuple[str, ...]:
        """Sorted names of the sources."""
        return tuple(self.sources)

    def to_json(self) -> str:
        """Compact and canonical: equal states give equal text. Floats survive the way there and back."""
        return json.dumps(to_values(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse. Raises StateError for what is no state of this version."""
        try:
            values = json.loads(text)
            version = values["version"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StateError("the state is no state_dict of this service: it lacks a version") from None
        if version not in READ_VERSIONS:
            read = " and ".join(map(str, READ_VERSIONS))
            raise StateError(f"the state has version {version}; this service reads versions {read}")
        try:
            state = cls._parse(values)
            _check_numbers(state)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
            raise StateError(
                f"the state is damaged ({type(error).__name__}: {error}); use an older checkpoint"
            ) from None
        return state

    @classmethod
    def _parse(cls, values: dict[str, Any]) -> Self:
        credits_ = credits_of(values)
        listings = {name: listing_of(entry) for name, entry in values["sources"].items()}
        sources = {
            name: SourceState(
                epoch=int(entry["epoch"]),
                position=int(entry["position"]),
                samples=int(entry["samples"]),
                tokens=int(entry["tokens"]),
                credit=credits_[name],
                index=listings[name][1],
                bad={str(reason): int(count) for reason, count in entry.get("bad", {}).items()},
                shards=listings[name][0],
                before=tuple((int(last), int(n), str(digest)) for last, n, digest in entry.get("before", ())),
            )
            for name, entry in sorted(values["sources"].items())
        }
        waiting, age = waiting_of(tuple(sources), values["waiting"])
        number, done = values.get("readmitted", (0, 0))
        return cls(
            seed=int(values["seed"]),
            step=int(values["step"]),
            sources=sources,
            config=config_of(values),
            waiting=waiting,
            age=age,
            largest=int(values["largest"]),
            ended=bool(values.get("ended", False)),
            readmitted=(int(number), int(done)),
            mixture=tuple(map(Change.from_json, values.get("mixture", ()))),
            skips=tuple(map(Skip.from_json, values.get("skips", ()))),
            job=str(values.get("job", "")),
        )

    def hash(self) -> str:
        """The same for every copy of this state, whichever version of the service has written it."""
        text = json.dumps(to_values(self, HASHED_VERSION), separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def renamed(self, config: Mapping[str, str]) -> State:
        """This state with its sources under the names that they have in settings with the hashes `config`.

        A source is the one that had the same first name. Places, accounts and waiting pieces follow.
        StateError: a `was` there names another source than the state's, or what was a later name.
        """
        found = renamings(self.config, config)
        for name in (entry.removeprefix("was/") for entry in config if entry.startswith("was/")):
            first = first_name(config, name)
            if name in self.sources and first_name(self.config, name) != first:
                raise StateError(
                    f"sources.{name}.was is {first!r}, but the {name!r} of the state "
                    f"{_called(self.config, name)}: give the renamed source a name that is not taken there"
                )
            if first in self.sources and first_name(self.config, first) != first:
                raise StateError(
                    f"sources.{name}.was is {first!r}, and {first!r} {_called(self.config, first)}: `was` is "
                    f"the first name; write {first_name(self.config, first)!r}"
                )
        if all(name == now for name, now in found.items()):
            return self
        names = {name: found.get(name, name) for name in self.sources}
        sources = {names[name]: source for name, source in self.sources.items()}
        sources = dict(sorted(sources.items()))
        number = np.array([list(sources).index(names[name]) for name in self.names])
        waiting = replace(self.waiting, source=number[self.waiting.source].astype(np.int64))
        entries = {_renamed_entry(entry, found): value for entry, value in self.config.items()}
        entries = {entry: value for entry, value in entries.items() if not entry.startswith("was/")}
        firsts = {f"was/{now}": first_name(self.config, name) for name, now in names.items()}
        entries |= {entry: first for entry, first in firsts.items() if entry != f"was/{first}"}
        return replace(self, sources=sources, waiting=waiting, config=entries)

    def adapted(
        self,
        names: tuple[str, ...],
        config: Mapping[str, str],
        sequence_length: int,
        whole: frozenset[str] = frozenset(),
    ) -> State:
        """This state under a changed configuration: sources added and removed, sequences shorter.

        A removed source takes its waiting pieces along, and what it is owed is forgotten, as is what it
        was ahead; a new one starts with nothing owed. Where a source is read otherwise now (a join by
        force), what waited of it is no more, and its files may be others. Longer waiting pieces are cut
        again. StateError: a piece with media, or of a source of preference pairs (`whole`), is longer than a
        sequence now.
        """
        fits = not np.any(self.waiting.length > sequence_length)
        if fits and self.names == tuple(sorted(names)) and dict(self.config) == dict(config):
            # To the last bit: a job that goes on with an empty store must not differ from one that does not.
            return replace(self, ended=False) if self.ended else self
        sources = {name: self.sources.get(name, SourceState()) for name in sorted(names)}
        kept = [number for number, name in enumerate(self.names) if name in sources]
        drift = sum(source.credit for source in sources.values()) / len(sources)
        sources = {name: replace(source, credit=source.credit - drift) for name, source in sources.items()}
        others = self._read_otherwise(config)
        for name in others & sources.keys():
            sources[name] = replace(sources[name], index="", shards=0, before=())
        kept = [number for number in kept if self.names[number] not in others]
        renumbered = np.full(len(self.sources), -1)
        renumbered[kept] = [list(sources).index(self.names[number]) for number in kept]
        mask = renumbered[self.waiting.source] >= 0
        waiting = self.waiting.take(mask)
        waiting = replace(waiting, source=renumbered[waiting.source].astype(np.int64))
        waiting, age = _recut(waiting, self.age[mask], sequence_length, tuple(sources), whole)
        return replace(self, sources=sources, config=config, waiting=waiting, age=age, ended=False)

    def under(self, schedule: str) -> State:
        """This state without changes of the mixture that another configured schedule than this one had."""
        kept = in_force(self.mixture, schedule)
        return self if len(kept) == len(self.mixture) else replace(self, mixture=kept)

    def _read_otherwise(self, config: Mapping[str, str]) -> set[str]:
        """Sources whose samples are others under settings with these hashes."""
        both = self.config.keys() & config
        changed = {entry for entry in both if self.config[entry] != config[entry]}
        if "job" in changed:
            return set(self.sources)
        names = {entry.removeprefix("source/") for entry in both if entry.startswith("source/")}
        moved = {name for name in names if first_name(self.config, name) != first_name(config, name)}
        return moved | {entry.removeprefix("source/") for entry in changed if entry.startswith("source/")}


def _called(config: Mapping[str, str], name: str) -> str:
    """Of a state's source: what it was first, for people."""
    first = first_name(config, name)
    return "has always been called so" if first == name else f"was {first!r} first"


def _renamed_entry(entry: str, names: Mapping[str, str]) -> str:
    kind, _, name = entry.partition("/")
    return f"{kind}/{names.get(name, name)}" if name else entry


def _check_numbers(state: State) -> None:
    """ValueError for what neither a store nor a column can hold."""
    numbers = [state.step, state.largest, *state.readmitted]
    for source in state.sources.values():
        numbers += [source.epoch, source.position, source.samples, source.tokens]
    if not all(0 <= number < 2**62 for number in numbers):
        raise ValueError("it holds a number below 0, or above all that can be")


def _recut(
    waiting: Pieces,
    age: NDArray[np.int64],
    sequence_length: int,
    names: tuple[str, ...],
    whole: frozenset[str],
) -> tuple[Pieces, NDArray[np.int64]]:
    long = waiting.length > sequence_length
    pair = np.isin(waiting.source, [number for number, name in enumerate(names) if name in whole])
    uncut = np.flatnonzero(long & (pair | waiting.has_media))
    if len(uncut):
        first = int(uncut[0])
        name = repr(names[int(waiting.source[first])])
        what = f"preference pair of {name}" if pair[first] else f"document of {name} with media"
        raise StateError(
            f"a waiting {what} has "
            f"{waiting.length[first]} tokens, and sequence_length is now {sequence_length}: resume once with "
            "the old sequence_length"
        )
    cut, index = cut_each(waiting, np.full(len(waiting), sequence_length))
    return cut, age[index]
