"""A whole strategy, declared: primitives as in MegaScale-Data (OVERLORD, arXiv 2504.09844), one value.

    planned = (
        Strategy()
        .mix({"web": 0.7, "captions": 0.3})
        .cost(llm="8b", encoder=1.0)
        .pack("balanced", sequences=64, capacity=8192)
        .distribute("dp")
        .balance("lpt")
        .split("cp", "per_document")
        .broadcast_at("tp", "pp")
        .plan(Items.of(lengths, patches=patches, sources=names), Mesh(dp=16, cp=2))
    )

`nodes.py` has the primitives, `graph.py` what may follow what, `run.py` what they do, `draw.py` and
`placing.py` how items are drawn and placed, `trace.py` what is told of it, and `steps.py` the same as plain
values for YAML. docs/strategies.md has worked examples.
"""

from dataloader_balancers.strategy.data import Applied, Items, Mesh, Planned
from dataloader_balancers.strategy.functions import FunctionBalancer, FunctionPacker
from dataloader_balancers.strategy.graph import Strategy
from dataloader_balancers.strategy.nodes import (
    Balance,
    BroadcastAt,
    Cost,
    Distribute,
    Mix,
    Node,
    Pack,
    Split,
    StrategyError,
)
from dataloader_balancers.strategy.steps import StepError, from_steps, to_steps

__all__ = [
    "Applied",
    "Balance",
    "BroadcastAt",
    "Cost",
    "Distribute",
    "FunctionBalancer",
    "FunctionPacker",
    "Items",
    "Mesh",
    "Mix",
    "Node",
    "Pack",
    "Planned",
    "Split",
    "StepError",
    "Strategy",
    "StrategyError",
    "from_steps",
    "to_steps",
]
