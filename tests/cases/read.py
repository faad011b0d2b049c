"""A trouble case as a source: what is delivered, what is bad, what is warned of."""

from dataclasses import dataclass
from pathlib import Path

from dataloader_svc.config.schema import Source
from dataloader_svc.sample import BlockId
from dataloader_svc.sources import SourceReader

DATA = Path(__file__).parent / "data"


@dataclass
class Outcome:
    """In file order: `good` values by role, `samples` their (shard name, row), `bad` by (shard name, row)."""

    good: list
    bad: dict
    samples: list
    reader: SourceReader

    @property
    def warnings(self):
        return self.reader.index.warnings

    def column(self, role):
        return [values[role] for values in self.good]

    def reasons(self):
        return [str(error.reason) for error in self.bad.values()]


def read(format_name, path, **fields):
    """All samples of a source made of files below `data`, read through the blocks of an epoch."""
    source = Source(format=format_name, path=path, extent=4096, **fields)
    reader = SourceReader("case", source, DATA, None, 1)
    order = reader.order(0)
    found = []
    for number in range(order.num_blocks):
        block = reader.read_block(BlockId("case", 0, number))
        for index in range(len(block)):
            shard, row = block.ref(index)
            values = {role: column[index] for role, column in block.columns.items()}
            found.append((reader.index.paths.index(shard), row, values, block.bad.get(index)))
    found.sort(key=lambda entry: entry[:2])
    names = reader.index.names
    return Outcome(
        good=[values for _, _, values, bad in found if bad is None],
        bad={(names[shard], row): bad for shard, row, _, bad in found if bad is not None},
        samples=[(names[shard], row) for shard, row, _, bad in found if bad is None],
        reader=reader,
    )


def colour(number):
    """The colour of picture k in the tar cases."""
    return 40 * number % 256, 100, 255 - 40 * number % 256
