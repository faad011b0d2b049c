"""Packing and balancing for training: pure functions on numpy arrays, of use without the service.

PACKERS   name -> pieces into sequences      (`pack/`, a file each)
BALANCERS name -> work onto ranks            (`assign/`, a file each)
CUTS      name -> one sequence over cp ranks (`context_parallel.py`; which: `cut_choice.py`)

A number of ranks for each sequence: `hybrid.py`. Costs are in `cost/`, lower bounds in `bounds.py`,
what helps where they bind in `remedies.py`, what a step would take in `simulate.py`; docs/balancing.md says
what each is for.
"""

from dataloader_balancers.assign import (
    BALANCERS,
    Cap,
    Dispatch,
    Ranks,
    TwoPlacements,
    by_groups,
    loss_weights,
    near_home,
    order_microbatches,
    place,
    two_phase_lpt,
    two_placements,
)
from dataloader_balancers.bounds import (
    Floor,
    Judged,
    StepFloor,
    floor,
    gap,
    imbalance,
    judge,
    loads,
    step_floor,
)
from dataloader_balancers.context_parallel import CUTS
from dataloader_balancers.cost import (
    AudioCost,
    CostFunctionError,
    CostModel,
    EncoderCost,
    FunctionCost,
    LlmCost,
    ModelShape,
    segment_sum,
    sequence_cost,
)
from dataloader_balancers.cut_choice import ChosenCut, CutLoad, Kernel, choose_cut, cut_load
from dataloader_balancers.cut_choices import ChosenCuts, choose_cuts
from dataloader_balancers.hybrid import HybridPlan, hybrid
from dataloader_balancers.pack import (
    LAYOUTS,
    PACKERS,
    Limit,
    Queue,
    Spans,
    concatenate,
    level,
    outliers,
    pack_all,
    queued_step,
)
from dataloader_balancers.remedies import Remedy, remedies
from dataloader_balancers.simulate import PipelineRun, StepRun, pipeline, simulate_step

__all__ = [
    "BALANCERS",
    "CUTS",
    "LAYOUTS",
    "PACKERS",
    "AudioCost",
    "Cap",
    "ChosenCut",
    "ChosenCuts",
    "CostFunctionError",
    "CostModel",
    "CutLoad",
    "Dispatch",
    "EncoderCost",
    "Floor",
    "FunctionCost",
    "HybridPlan",
    "Judged",
    "Kernel",
    "Limit",
    "LlmCost",
    "ModelShape",
    "PipelineRun",
    "Queue",
    "Ranks",
    "Remedy",
    "Spans",
    "StepFloor",
    "StepRun",
    "TwoPlacements",
    "by_groups",
    "choose_cut",
    "choose_cuts",
    "concatenate",
    "cut_load",
    "floor",
    "gap",
    "hybrid",
    "imbalance",
    "judge",
    "level",
    "loads",
    "loss_weights",
    "near_home",
    "order_microbatches",
    "outliers",
    "pack_all",
    "pipeline",
    "place",
    "queued_step",
    "remedies",
    "segment_sum",
    "sequence_cost",
    "simulate_step",
    "step_floor",
    "two_phase_lpt",
    "two_placements",
]
