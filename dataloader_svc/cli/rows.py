"""From the name of a sample to the row of a shard that holds it, for commands that tell people.

A name (source, epoch, position) means a row only under the seed, shuffle and files that it was given under.
What was planned with others gets no row, and a note that says why: a wrong row would be worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.progress import Progress

from dataloader_svc.config.digest import compare, read_digest, renamings
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.errors import DataloaderError, StateError
from dataloader_svc.planner.state import State
from dataloader_svc.sample import RowRef, SampleId
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.storage import Storage

_ORDER_FIELDS = ("format", "shuffle", "extent", "transforms", "was")
"""Settings of a source that change which row a position means; of the job, the seed does."""


@dataclass(slots=True)
class Rows:
    """readers: by source, of those whose rows can be told. notes: source -> why not, for the others.

    changed: of these, the readers of sources whose files are others now; they may be a repair.
    state: that the rows are looked up for: which shards an epoch was made of
    """

    readers: dict[str, SourceReader] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    changed: dict[str, SourceReader] = field(default_factory=dict)
    state: State | None = None

    def reader(self, source: str, epoch: int) -> SourceReader | None:
        """Of an epoch, with the shards that it was made of; None where no rows can be told."""
        reader = self.readers.get(source)
        known = None if self.state is None else self.state.sources.get(source)
        return reader if reader is None or known is None else reader.listed(known.listing(epoch))

    def row(self, sample: SampleId) -> RowRef | None:
        """Where the sample lies; None where it can't be told."""
        reader = self.reader(sample.source, sample.epoch)
        if reader is None or sample.position >= reader.num_rows:
            return None
        return reader.locate_row(sample.epoch, sample.position)


def find_rows(loaded: LoadedConfig, state: State, names: Iterable[str], progress: Progress) -> Rows:
    """Index the sources `names`, from the cache where it is fresh, and compare them with `state`.

    A source that can't be opened becomes a note, not an error: what the log says of it still stands.
    """
    rows = Rows(state=state)
    config = loaded.config
    today = read_digest(config, loaded.base_dir)
    now = renamings(state.config, today)
    changed = compare(state.renamed(today).config, today)
    bar = progress.add_task("", total=None)
    storage = Storage.of(config, loaded.base_dir)
    for name in names:
        called = now.get(name, name)
        if called not in config.sources:
            rows.notes[name] = "the configuration has no such source any more"
            continue
        fields = ["seed", *(f"sources.{called}.{setting}" for setting in _ORDER_FIELDS)]
        differing = [setting for setting in fields if setting in changed]
        if differing:
            rows.notes[name] = f"{', '.join(differing)} changed since the step was planned"
            continue
        progress.update(bar, description=f"indexing {name}")
        try:
            reader = SourceReader(
                called,
                config.sources[called],
                loaded.base_dir,
                loaded.base_dir / config.index_cache,
                config.seed,
                lambda done, total: progress.update(bar, completed=done, total=total),
                storage=storage,
            )
        except DataloaderError as error:
            rows.notes[name] = str(error)
            continue
        try:
            for listing in state.sources[name].listings if name in state.sources else ():
                reader.listed(listing)
        except StateError:
            rows.notes[name] = "its files are not those that the step was planned with"
            rows.changed[name] = reader
        else:
            rows.readers[name] = reader
    progress.remove_task(bar)
    return rows
