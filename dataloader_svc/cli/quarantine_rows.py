"""From quarantined samples to the blocks that hold them, as files and configuration are now.

A sample is looked up only where its name still means the row that was bad; what can't be is returned with the
reason, in words for people. `export` reads the rows, `readmit` tries them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.progress import Progress

from dataloader_svc.cli.rows import Rows, find_rows
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.errors import SourceError
from dataloader_svc.planner.history import current_generation
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.state import State
from dataloader_svc.sample import BlockId, SampleId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.store.base import Store
from dataloader_svc.store.quarantine_log import Quarantined

_NO_CAP = 2**31 - 1


@dataclass(slots=True)
class Found:
    """blocks: the samples by block, with the readers of their sources. lost: sample -> why it is in none.

    repaired: sources whose files are others than were planned, and a repair of those
    """

    readers: dict[str, SourceReader] = field(default_factory=dict)
    blocks: dict[BlockId, list[Quarantined]] = field(default_factory=dict)
    lost: dict[SampleId, str] = field(default_factory=dict)
    repaired: set[str] = field(default_factory=set)
    places: Rows = field(default_factory=Rows)

    def reader(self, block: BlockId) -> SourceReader:
        """Of a block of `blocks`, with the shards that its epoch was made of."""
        reader = self.places.reader(block.source, block.epoch)
        assert reader is not None, "the block was found by it"
        return reader


def last_state(store: Store) -> State | None:
    """The job's state after the last step in its log; None where nothing was planned."""
    generation = current_generation(store)
    if generation is None:
        return None
    last = store.last(generation.log)
    return generation.base if last is None else Plan.from_bytes(last[1], _NO_CAP).state


def find_blocks(
    loaded: LoadedConfig,
    store: Store,
    rows: Sequence[Quarantined],
    progress: Progress,
    *,
    repaired: bool = False,
) -> Found:
    """Index the sources of `rows`, from the cache where it is fresh, and find the blocks of their samples.

    repaired   files may be a repair of those that were planned; they are read in the order of those
    """
    found = Found()
    state = last_state(store)
    if state is None:
        found.lost = {row.sample: "nothing is planned yet" for row in rows}
        return found
    places = find_rows(loaded, state, sorted({row.sample.source for row in rows}), progress)
    if repaired:
        _match(places, state, found)
    found.readers, found.places = places.readers, places
    for row in rows:
        source, epoch, position = row.sample
        if source in places.notes:
            found.lost[row.sample] = places.notes[source]
            continue
        at = places.row(row.sample)
        if at != row.row:
            found.lost[row.sample] = f"this name means {at or 'no row'} now: files or settings have changed"
            continue
        reader = places.reader(source, epoch)
        assert reader is not None, "its row was found"
        number, _ = reader.order(epoch).locate(position)
        found.blocks.setdefault(BlockId(source, epoch, number), []).append(row)
    return found


def _match(places: Rows, state: State, found: Found) -> None:
    """Take the files of changed sources for repairs, where they can be."""
    for name, reader in places.changed.items():
        try:
            reader.accept_repair(*state.sources[name].listings, note=False)
        except SourceError as error:
            places.notes[name] = str(error)
            continue
        del places.notes[name]
        places.readers[name] = reader
        found.repaired.add(name)
