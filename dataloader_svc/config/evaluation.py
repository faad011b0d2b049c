"""A job with `evaluation` is two: what training reads and what evaluation reads, each a configuration.

Loaders serve both, so they are given the sources of both. Everything else of evaluation is a job like any
other, without shuffling, which ends when each sample was read once. Models are copied, never imported: they
ask `cross.py`, which asks here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataloader_svc.config.schema import Config, Constructor, Source

SPLIT = "eval"
"""What clients call it, and what it is called in the store and among processes."""

_CONSTRUCTOR_PARTS = 4
"""Of `constructor.memory`; one of them is for evaluation, which is seldom read."""

_HELD_OUT = "held_out"  # the transform


def held_out_name(name: str) -> str:
    """The source of evaluation that has what is held out of source `name`."""
    return f"{name}.{SPLIT}"


def of_training(config: Config) -> Config:
    """`config` as training has it: sources without what is held out of them. The same, when repeated."""
    if config.evaluation is None or not config.evaluation.held_out:
        return config
    fractions, sources = config.evaluation.held_out, dict(config.sources)
    for name, fraction in fractions.items():
        if name in sources:
            sources[name] = _with_part(sources[name], fraction, "rest")
    return config.model_copy(update={"sources": sources})


def sources_of(config: Config) -> dict[str, Source]:
    """What evaluation reads, by name, in the order of the configuration; empty where there is none."""
    evaluation = config.evaluation
    if evaluation is None:
        return {}
    found = dict(evaluation.sources)
    for name, fraction in evaluation.held_out.items():
        if (source := config.sources.get(name)) is not None:
            part = _with_part(source, fraction, _HELD_OUT)
            # Whatever is drawn of it by name is drawn as for training.
            found[held_out_name(name)] = part.model_copy(update={"was": source.was or name})
    return {name: source.model_copy(update={"shuffle": False}) for name, source in found.items()}


def _with_part(source: Source, fraction: float, part: str) -> Source:
    """`source` with the transform behind its own, in place of the one that `of_training` has put there."""
    own = source.transforms
    if own[-1:] == [_entry(fraction, "rest")]:
        own = own[:-1]
    return source.model_copy(update={"transforms": [*own, _entry(fraction, part)]})


def _entry(fraction: float, part: str) -> dict[str, Any]:
    return {_HELD_OUT: {"fraction": fraction, "part": part}}


def of_evaluation(config: Config) -> Config:
    """The job of evaluation: every sample of its sources once, drawn in turn, the last step padded."""
    evaluation = config.evaluation
    assert evaluation is not None, "asked only where there is one"
    sources = sources_of(config)
    mixture, strategy = config.mixture, config.strategy
    only = mixture.schedule[0].model_copy(
        update={"step": 0, "ramp": "none", "weights": dict.fromkeys(sources, 1.0)}
    )
    return config.model_copy(
        update={
            "sources": sources,
            "mixture": mixture.model_copy(
                update={"unit": "samples", "schedule": [only], "exhausted": "drop", "adaptive": None}
            ),
            "global_batch": evaluation.global_batch or config.global_batch,
            "strategy": strategy.model_copy(update={"mode": "strict", "wait": None, "calibrate": False}),
            "last_batch": "pad",
            "constructor": _share(config.constructor, 1),
            "evaluation": None,
        }
    )


def beside_evaluation(config: Config) -> Config:
    """Training's part of what it shares with evaluation in a process."""
    if config.evaluation is None:
        return config
    return config.model_copy(update={"constructor": _share(config.constructor, _CONSTRUCTOR_PARTS - 1)})


def with_evaluation(config: Config) -> Config:
    """All sources of both, for those who read them."""
    return config.model_copy(update={"sources": {**config.sources, **sources_of(config)}})


def _share(constructor: Constructor, parts: int) -> Constructor:
    shared: Any = constructor.shared_memory
    if not isinstance(shared, bool | str):
        shared = shared * parts // _CONSTRUCTOR_PARTS
    memory = constructor.memory * parts // _CONSTRUCTOR_PARTS
    return constructor.model_copy(update={"memory": memory, "shared_memory": shared})


def places(config: Config) -> dict[str, tuple[str, ...]]:
    """Name of a source of evaluation -> where it stands in the file."""
    evaluation = config.evaluation
    if evaluation is None:
        return {}
    own: dict[str, tuple[str, ...]]
    own = {name: ("evaluation", "sources", name) for name in evaluation.sources}
    return own | {held_out_name(name): ("evaluation", "held_out", name) for name in evaluation.held_out}
