"""Going on far inside a source costs the blocks that come, not those that were read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dataloader_svc.planner.state import SourceState, State
from dataloader_svc.sample import BlockId, ProbeColumns
from dataloader_svc.testing.planning import PlanDriver, plan_config
from dataloader_svc.testing.scripted_loader import Sample, ScriptedSources, probe_columns

ROWS, BLOCK, POSITION = 12_000_000, 1000, 10_000_321


@dataclass(frozen=True, slots=True)
class LongSource(ScriptedSources):
    """One source of `ROWS` samples of 8 tokens, made when they are asked for."""

    probed: list[BlockId] = field(default_factory=list)

    def block_starts(self, source: str) -> np.ndarray:
        return np.arange(0, ROWS + 1, BLOCK)

    def probe(self, block: BlockId) -> ProbeColumns:
        self.probed.append(block)
        return probe_columns(block, block.block * BLOCK, [Sample(8)] * BLOCK)


def test_position_ten_million_costs_the_block():
    config = plan_config({"web": 1}, sequences=4, sequence_length=32)
    sources = LongSource({"web": ()}, BLOCK)
    fresh = State.initial(("web",), seed=config.seed, config={})
    at = SourceState(1, POSITION, ROWS + POSITION, 8 * (ROWS + POSITION), index=sources.digest)
    driver = PlanDriver(config, sources, state=replace(fresh, step=700_000, sources={"web": at}))
    (plan,) = driver.run(700_000)
    assert plan.pieces.position.min() == POSITION
    assert sources.probed == [BlockId("web", 1, POSITION // BLOCK)]
    assert [line for line in driver.trace if "describe " in line] == ["    describe web/1"]
    driver.run(700_200)
    read = [block.block for block in sources.probed]
    assert read == sorted(set(read))  # each once, none of before
    assert len(read) <= 1 + (200 * 4 * 4 + 4 * 4 * 6) // BLOCK + 2
