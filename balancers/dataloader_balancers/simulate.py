"""What a step would take: pipelines of unequal microbatches, and ranks that wait for the slowest.

A rank's microbatches go through `stages` devices, forward and back, in the order of one of two schedules:

- 1F1B (`chunks` 1): stage s of p runs p - s - 1 forwards, then one forward and one backward in turn
  (PipeDream-Flush; Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1). With m equal microbatches the
  stages idle for (p - 1) / (m + p - 1) of the time.
- interleaved (`chunks` v > 1): each device has v parts of the model, which p microbatches at a time pass one
  after the other; (p - 1) / (v m + p - 1) (section 2.2.2, and Megatron-LM's schedules.py for the order).

An operation begins when its stage is free and what it needs has come; sending takes no time. Leading axes of
all arrays are any number of independent ranks and steps, simulated at once. Pure; the unit of time is that of
the costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Meet = Literal["step", "phase", "microbatch"]
MEETS: tuple[Meet, ...] = ("step", "phase", "microbatch")


@dataclass(frozen=True, slots=True, eq=False)
class PipelineRun:
    """time: float64 (...), when all is done; busy: float64 (..., stages), of each device."""

    time: Floats
    busy: Floats

    @property
    def idle(self) -> Floats:
        """float64 (...): share of the devices' time in which they wait; 0 where there is no work."""
        whole = self.time * self.busy.shape[-1]
        return np.where(whole > 0, 1.0 - self.busy.sum(axis=-1) / np.where(whole > 0, whole, 1.0), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """A step of dp ranks; arrays float64 (...), one entry a step.

    time       until the slowest rank is done
    rank_time  (..., dp), of each rank without waiting for others
    bubble     share of all devices' time that they wait inside their rank's pipeline
    waiting    share that they wait for slower ranks; the rest is work
    llm_imbalance, encoder_imbalance   max / mean over ranks of the phase's work; 1 where there is none
    """

    time: Floats
    rank_time: Floats
    bubble: Floats
    waiting: Floats
    llm_imbalance: Floats
    encoder_imbalance: Floats

    @property
    def idle(self) -> Floats:
        """Share of all devices' time without work."""
        return self.bubble + self.waiting


def pipeline(forward: ArrayLike, stages: int, *, chunks: int = 1, backward: ArrayLike = 2.0) -> PipelineRun:
    """Run microbatches through a pipeline.

    forward   float (..., m, stages * chunks), time of each microbatch in each part of the model, in order;
              device s has the parts s, s + stages, ... (`evenly` shares a microbatch's cost)
    backward  a number: time of each backward pass over that of its forward; or the times, as `forward`

    ValueError for shapes and values that can't be, and for an interleaved schedule whose microbatches are no
    multiple of `stages`.
    """
    costs = _checked(forward, stages, chunks)
    back = np.asarray(backward, np.float64)
    if back.ndim == 0:
        back = costs * _ratio(float(back))
    elif _checked(back, stages, chunks).shape != costs.shape:
        raise ValueError(f"backward has shape {back.shape} and forward {costs.shape}; equal ones are needed")
    num, parts = costs.shape[-2:]
    zero = np.zeros(costs.shape[:-2])
    free = [zero] * stages
    done: dict[tuple[bool, int, int], Floats] = {}
    for is_backward, microbatch, part in _order(stages, num, chunks):
        stage = part % stages
        if is_backward:
            needed = (True, microbatch, part + 1) if part + 1 < parts else (False, microbatch, part)
            length = back[..., microbatch, part]
        else:
            needed = (False, microbatch, part - 1)
            length = costs[..., microbatch, part]
        end = np.maximum(free[stage], done.get(needed, zero)) + length
        free[stage] = done[is_backward, microbatch, part] = end
    # axes: ..., chunk, stage
    busy = (costs + back).sum(axis=-2).reshape(*costs.shape[:-2], chunks, stages).sum(axis=-2)
    return PipelineRun(np.maximum.reduce(free), busy)


def evenly(costs: ArrayLike, stages: int, chunks: int = 1) -> Floats:
    """float64 (..., m, stages * chunks): equal parts of `costs` float (..., m)."""
    whole = np.asarray(costs, np.float64)
    parts = stages * chunks
    return np.repeat(whole[..., None] / parts, parts, axis=-1)


def simulate_step(
    llm: ArrayLike,
    encoder: ArrayLike | None = None,
    *,
    stages: int = 1,
    chunks: int = 1,
    backward: float = 2.0,
    meet: Meet = "step",
) -> StepRun:
    """Steps of dp ranks with m microbatches each, whose forward passes cost `llm` and `encoder` float
    (..., dp, m); a rank with fewer has zeros.

    stages, chunks  of each rank's pipeline, in which the language model lies in equal parts
    meet            where ranks wait for each other. `step`: at its end, when gradients are reduced; the
                    encoder then is on the first stage. `phase`: also between all encoder and all LLM work;
                    the encoder is on all devices of the rank. `microbatch`: in each microbatch and phase, as
                    with sharded weights (ZeRO-3, FSDP); not with stages
    """
    model = np.asarray(llm, np.float64)
    vision = np.zeros_like(model) if encoder is None else np.asarray(encoder, np.float64)
    if model.ndim < 2 or vision.shape != model.shape:
        raise ValueError(f"llm has shape {model.shape} and encoder {vision.shape}; equal ones (..., dp, m)")
    if meet not in MEETS:
        raise ValueError(f"unknown meet {meet!r}; known: {', '.join(MEETS)}")
    if meet == "microbatch" and stages > 1:
        raise ValueError(f"ranks that meet in every microbatch have no pipeline; stages is {stages}")
    parts = evenly(model, stages, chunks)
    if meet == "step":
        parts[..., 0] += vision
    _checked(vision[..., None], 1, 1)
    run = pipeline(parts, stages, chunks=chunks, backward=backward)
    both = 1.0 + _ratio(backward)
    vision_time = vision.sum(axis=-1) * both / stages  # (..., dp), shared by the rank's devices
    if meet == "step":
        rank_time, time = run.time, run.time.max(axis=-1)
        busy = run.busy.sum(axis=-1)
    else:
        rank_time = run.time + vision_time
        busy = run.busy.sum(axis=-1) + vision.sum(axis=-1) * both
        if meet == "phase":
            time = run.time.max(axis=-1) + vision_time.max(axis=-1)
        else:  # axes of the maximum: ..., m
            time = (model.max(axis=-2) + vision.max(axis=-2)).sum(axis=-1) * both
    devices = model.shape[-2] * stages
    whole = np.where(time > 0, time * devices, 1.0)
    bubble = np.maximum(0.0, (rank_time * stages - busy).sum(axis=-1) / whole)  # no rounding below none
    waiting = np.where(time > 0, 1.0 - rank_time.sum(axis=-1) * stages / whole, 0.0)
    return StepRun(time, rank_time, bubble, waiting, _imbalance(model), _imbalance(vision))


def _imbalance(costs: Floats) -> Floats:
    """float64 (...): max / mean over ranks of `costs` (..., dp, m)."""
    load = costs.sum(axis=-1)
    mean = load.mean(axis=-1)
    return np.where(mean > 0, load.max(axis=-1) / np.where(mean > 0, mean, 1.0), 1.0)


def _order(stages: int, num: int, chunks: int) -> list[tuple[bool, int, int]]:
    """All operations (backward?, microbatch, part) in an order in which each follows all that it needs."""
    waiting = [_operations(stage, stages, num, chunks) for stage in range(stages)]
    at = [0] * stages
    done: set[tuple[bool, int, int]] = set()
    order: list[tuple[bool, int, int]] = []
    last = stages * chunks - 1
    while len(order) < 2 * num * stages * chunks:
        before = len(order)
        for stage, mine in enumerate(waiting):
            while at[stage] < len(mine):
                is_backward, microbatch, part = operation = mine[at[stage]]
                if is_backward:
                    needs = (True, microbatch, part + 1) if part < last else (False, microbatch, part)
                else:
                    needs = (False, microbatch, part - 1)
                if needs[2] >= 0 and needs not in done:
                    break
                done.add(operation)
                order.append(operation)
                at[stage] += 1
        assert len(order) > before, "these schedules have no deadlock"
    return order


def _operations(stage: int, stages: int, num: int, chunks: int) -> list[tuple[bool, int, int]]:
    """What one device does, in its order."""
    total = num * chunks
    ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(ahead, total)
    result = []
    for turn in range(total + ahead):
        if turn < total:
            result.append((False, *_passing(turn, stage, stages, chunks, back=False)))
        if turn >= ahead:
            result.append((True, *_passing(turn - ahead, stage, stages, chunks, back=True)))
    return result


def _passing(turn: int, stage: int, stages: int, chunks: int, *, back: bool) -> tuple[int, int]:
    """(microbatch, part) of a device's turn: `stages` microbatches through a chunk, then through the next."""
    if chunks == 1:
        return turn, stage
    group, place = divmod(turn, stages * chunks)
    chunk, number = divmod(place, stages)
    return group * stages + number, stage + stages * (chunks - 1 - chunk if back else chunk)


def _ratio(backward: float) -> float:
    if not (np.isfinite(backward) and backward >= 0):
        raise ValueError(f"backward is {backward}; finite and not negative")
    return backward


def _checked(forward: ArrayLike, stages: int, chunks: int) -> Floats:
    costs = np.asarray(forward, np.float64)
    if stages < 1 or chunks < 1:
        raise ValueError(f"stages is {stages} and chunks {chunks}; both at least 1")
    if costs.ndim < 2 or costs.shape[-1] != stages * chunks:
        raise ValueError(f"costs have shape {costs.shape}; (..., microbatches, {stages * chunks}) is needed")
    if chunks > 1 and (costs.shape[-2] % stages or stages == 1):
        raise ValueError(
            f"an interleaved schedule needs several stages and a multiple of them in microbatches; there are "
            f"{costs.shape[-2]} for {stages} stages: add empty ones, or use chunks=1"
        )
    wrong = np.argwhere(~((costs >= 0) & np.isfinite(costs)))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise ValueError(f"cost {place} is {costs[place]}; finite and not negative")
    return costs
