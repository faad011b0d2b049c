"""The steps that a job would have: its planner and its loaders' probes in this process, nothing decoded.

What a loader would be asked is answered here, a block after the other: rows read, texts tokenized, headers of
media looked at. So a step is the very step that `serve` would plan from an empty store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import numpy as np

from dataloader_balancers import CUTS, Kernel, LlmCost, cut_load, segment_sum
from dataloader_svc.cli.simulate_strategies import Declared, Layout, Placed
from dataloader_svc.cli.simulate_work import Work
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.errors import DataError
from dataloader_svc.loader.read import probe_columns, read_block
from dataloader_svc.loader.rules import SampleRule
from dataloader_svc.planner import core
from dataloader_svc.planner.place import MeshSize, Strategy, place
from dataloader_svc.planner.plan import Plan
from dataloader_svc.planner.select import Rules
from dataloader_svc.planner.state import State
from dataloader_svc.sample import BlockId, ProbeColumns
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.storage import Storage


@dataclass(slots=True)
class Planning:
    """Plans the job's steps, reading what they need. `probes`: what was read, for other strategies too."""

    loaded: LoadedConfig
    rules: Mapping[str, SampleRule]
    pool: Executor
    probes: dict[BlockId, ProbeColumns] = field(default_factory=dict)

    def steps(self, count: int, advance: Callable[[], None]) -> list[Plan]:
        """The first `count` plans; fewer where the data ends. Raises what the planner stops with."""
        config = self.loaded.config
        planner = core.PlannerCore(Rules.of(config, self.loaded.base_dir), ahead=config.planner.ahead)
        readers = dict(self._readers())
        plans: list[Plan] = []
        state = State.initial(tuple(config.sources), seed=config.seed, config={})
        events: list[core.Event] = [core.Based(state), core.Demanded(count - 1, 0)]
        while events:
            for action in planner.apply(events.pop(0)):
                match action:
                    case core.Describe(source, epoch):
                        reader = readers[source]
                        starts = reader.order(epoch).block_starts
                        events.append(core.Described(source, epoch, starts, reader.index.digest))
                    case core.Lease(block):
                        if block not in self.probes:
                            rule, reader = self.rules[block.source], readers[block.source]
                            self.probes[block] = probe_columns(read_block(reader, block, rule, self.pool))
                        events.append(core.Probed(self.probes[block]))
                    case core.Append(plan):
                        events.append(core.Appended(plan.step))
                    case core.Publish(plan):
                        plans.append(plan)
                        advance()
                    case core.Stop(error):
                        raise error
                    case _:  # nothing is held, so nothing is released; the end shows in the plans
                        pass
        if not plans:
            raise DataError(f"job {config.job!r}: the data ends before the first step")
        return sorted(plans, key=lambda plan: plan.step)

    def _readers(self) -> Iterator[tuple[str, SourceReader]]:
        config, base = self.loaded.config, self.loaded.base_dir
        storage = Storage.of(config, base)
        for name, source in config.sources.items():
            yield (
                name,
                SourceReader(name, source, base, base / config.index_cache, config.seed, storage=storage),
            )


def work_of(plan: Plan, strategy: Strategy, cp: int, cut: str) -> Work:
    """The plan's sequences, as each dp rank's cp ranks would share them: of the language model the cost of
    the dearest of them under `cut`, of the encoder an equal part, and so too where a function says what a
    document costs: it knows no ranks.
    """
    lengths, offsets = plan.pieces.length, plan.sequence_offsets
    encoder = segment_sum(strategy.encoder.of_pieces(plan.pieces), offsets) / cp
    tokens = segment_sum(lengths, offsets).astype(np.int64)
    cost = strategy.llm
    if cp > 1 and isinstance(cost, LlmCost):
        shares = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        llm = np.array([dearest(lengths[low:high].tolist(), cp, cut, cost) for low, high in shares])
    else:
        llm = segment_sum(cost.of_documents(lengths), offsets) / cp
    return Work(llm, encoder, tokens)


def placed_plans(plans: Sequence[Plan], loaded: LoadedConfig) -> Declared:
    """The plans of a job's strategy as the service places them on a layout, with its group size if that has
    one. Ranks are simulated as alike.
    """
    strategy = replace(Strategy.of(loaded.config, loaded.base_dir), ranks=None)
    cut = loaded.config.strategy.context_parallel

    def placed(_: Sequence[Work], layout: Layout) -> tuple[Sequence[Work], Sequence[Placed]]:
        of_layout = replace(strategy, group_size=layout.group_size or strategy.group_size)
        mesh = MeshSize(layout.dp, layout.cp, 1, layout.pp)
        made, placements = [], []
        for plan in plans:
            work = work_of(plan, strategy, layout.cp, cut)
            rank = place(plan, mesh, of_layout).dp_rank[: plan.num_sequences].astype(np.int32)
            made.append(work)
            placements.append(Placed(work.llm, work.encoder, rank, rank))
        return made, placements

    return placed


def dearest(lengths: Sequence[int], cp: int, cut: str, cost: LlmCost) -> float:
    """Of the cp ranks of a sequence of such documents, as constructors cut it: its end padded to 2 cp."""
    bounds = np.cumsum([0, *lengths])
    lacking = -int(bounds[-1]) % (2 * cp)
    if lacking:
        bounds = np.append(bounds, bounds[-1] + lacking)
    return cut_load(bounds, CUTS[cut](bounds, cp), cost, Kernel(tile=1)).dearest
