"""What is wrong between fields of a configuration that are each fine by themselves.

`schema.py` asks when a `Config` is built. To add a check, yield its place, as keys from the top, and a
sentence with what was found and what is allowed. Knows nothing of files: `check` finds what those hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dataloader_balancers import BALANCERS, PACKERS
from dataloader_balancers.cost import PRESETS
from dataloader_balancers.strategy.nodes import BOTH
from dataloader_svc.registry import nearest

if TYPE_CHECKING:  # the models ask here while they are built
    from dataloader_svc.config.schema import Config, Images, Strategy

Problem = tuple[tuple[str | int, ...], str]
"""A field's place, as keys from the top, and what is wrong with it."""


def cross_problems(config: Config) -> list[Problem]:
    """What is wrong between fields that are each fine."""
    return [
        *_batch_problems(config),
        *_name_problems(config),
        *_mixture_problems(config),
        *_media_problems(config),
        *_sound_problems(config),
        *_strategy_problems(config.strategy),
        *_waiting_problems(config),
    ]


def _batch_problems(config: Config) -> Iterator[Problem]:
    batch, mesh = config.global_batch, config.mesh
    if batch.tokens is not None and batch.tokens % config.sequence_length:
        message = f"{batch.tokens} is not a multiple of sequence_length {config.sequence_length}"
        yield ("global_batch", "tokens"), message
        return
    sequences = config.num_sequences  # None: each step's are filled up for the mesh that it meets
    if sequences is not None and sequences % batch.per_microbatch:
        message = f"{batch.per_microbatch} does not divide {sequences} sequences"
        yield ("global_batch", "per_microbatch"), message
    elif sequences is not None and sequences % (mesh.dp * batch.per_microbatch):
        microbatches = sequences // batch.per_microbatch
        fitting = [dp for dp in range(1, microbatches + 1) if microbatches % dp == 0]
        message = (
            f"{mesh.dp} ranks can't share {microbatches} microbatches (global_batch: {sequences} "
            f"sequences, {batch.per_microbatch} in a microbatch) evenly; dp that fits: {_listed(fitting)}"
        )
        yield ("mesh", "dp"), message
    length, slices = config.sequence_length, 2 * mesh.cp
    if mesh.cp > 1 and length % slices:
        message = (
            f"sequence_length {length} is not a multiple of 2 * cp = {slices} (each cp rank takes two slices "
            f"of a sequence); the next that is: {-(-length // slices) * slices}"
        )
        yield ("mesh", "cp"), message


def _name_problems(config: Config) -> Iterator[Problem]:
    """A first name belongs to one source: it keys its order."""
    seen: dict[str, str] = {}
    for name, source in config.sources.items():
        if source.was is None:
            continue
        if source.was in config.sources:
            whose = "its own name" if source.was == name else "another source of this file"
            message = f"{source.was!r} is {whose}: `was` is the first name of what is called {name!r} now"
            yield ("sources", name, "was"), message
        elif source.was in seen:
            yield ("sources", name, "was"), f"{source.was!r} is what {seen[source.was]!r} was, too: keep one"
        seen.setdefault(source.was, name)


def _listed(numbers: list[int], most: int = 8) -> str:
    """The numbers, the middle left out where there are many."""
    shown = [str(number) for number in numbers]
    return ", ".join(shown if len(shown) <= most else [*shown[: most - 2], "...", shown[-1]])


def _mixture_problems(config: Config) -> Iterator[Problem]:
    names = sorted(config.sources)
    for number, entry in enumerate(config.mixture.schedule):
        for name in entry.weights:
            if name not in config.sources:
                message = f"no source is called {name!r}; sources: {', '.join(names)}{nearest(name, names)}"
                yield ("mixture", "schedule", number, name), message
    weighted = {name for entry in config.mixture.schedule for name, w in entry.weights.items() if w > 0}
    for name in config.sources:
        if name not in weighted:
            yield ("sources", name), "no entry of mixture.schedule gives it a weight above zero"


def _media_problems(config: Config) -> Iterator[Problem]:
    for name, source in config.sources.items():
        for kind in ("image", "video", "audio"):
            if source.has_media(kind) and getattr(config.media_tokens, kind) is None:
                message = f"source {name!r} has it: name the vocabulary entry that stands in its place"
                yield ("media_tokens", kind), message
    smallest = smallest_picture(config.images)
    pictures = any(source.has_media("image") or source.video for source in config.sources.values())
    if pictures and smallest > config.sequence_length:
        message = f"{config.sequence_length} is below the {smallest} tokens of the smallest picture"
        yield ("sequence_length",), f"{message} (images.min_pixels {config.images.min_pixels})"
    token = (config.images.patch * config.images.merge) ** 2
    for name, source in config.sources.items():
        video = source.video
        if video is not None and video.max_clip_pixels < video.most_frames * token:
            message = (
                f"{video.max_clip_pixels} pixels are too few for {video.most_frames} frames of at least one "
                f"token ({token} pixels): at least {video.most_frames * token}, or fewer frames"
            )
            yield ("sources", name, "video", "max_clip_pixels"), message


def _sound_problems(config: Config) -> Iterator[Problem]:
    mel, most = config.mel, config.sequence_length
    token_s = mel.hop * mel.frames_per_token / mel.sample_rate
    for name, source in config.sources.items():
        if source.audio is None:
            continue
        seconds = source.audio.max_seconds
        tokens = mel.tokens_of(seconds)
        if tokens < 1:
            message = f"{seconds:g} s are shorter than one token of sound, {token_s:g} s (`mel`)"
            yield ("sources", name, "audio", "max_seconds"), message
        elif tokens > most:
            limit = f"sequence_length {most}: at most {most * token_s:g} s"
            message = f"{seconds:g} s are {tokens} tokens, above {limit}"
            yield ("sources", name, "audio", "max_seconds"), message


def smallest_picture(images: Images) -> int:
    """Tokens of the smallest picture."""
    return max(1, -(-images.min_pixels // (images.patch * images.merge) ** 2))


def _strategy_problems(strategy: Strategy) -> Iterator[Problem]:
    named = (
        (("strategy", "pack"), "packer", strategy.pack, PACKERS),
        (("strategy", "balance"), "balancer", strategy.balance, (*BALANCERS, BOTH)),
        (("strategy", "cost", "llm", "model"), "model", strategy.cost.llm.model, PRESETS),
    )
    for place, kind, name, known in named:
        is_function = place[-1] != "model" and name is not None and ":" in name  # `check` imports those
        if name is not None and name not in known and not is_function:
            names = sorted(known)
            yield place, f"unknown {kind} {name!r}; known: {', '.join(names)}{nearest(name, names)}"
    yield from _cost_problems(strategy)


def _waiting_problems(config: Config) -> Iterator[Problem]:
    strategy, samples = config.strategy, config.global_batch.samples
    if strategy.mode == "strict" and strategy.wait is not None:
        yield ("strategy", "wait"), "in strict mode no outlier waits; use mode: relaxed, or leave it out"
    if strategy.mode == "relaxed" and samples is not None:
        message = (
            f"a step of {samples} samples has all that are drawn for it, so none can wait: use mode: strict, "
            "or give global_batch in sequences or tokens"
        )
        yield ("strategy", "mode"), message


def _cost_problems(strategy: Strategy) -> Iterator[Problem]:
    """A cost has one origin; the two coefficients are one."""
    llm, encoder = strategy.cost.llm, strategy.cost.encoder
    coefficients = None if llm.linear is None and llm.quadratic is None else "linear, quadratic"
    given: dict[str, object]
    given = {"model": llm.model, "config": llm.config, "function": llm.function, "": coefficients}
    yield from _one_origin(("strategy", "cost", "llm"), given)
    given = {"patches": encoder.patches, "config": encoder.config, "function": encoder.function}
    yield from _one_origin(("strategy", "cost", "encoder"), given)


def _one_origin(place: tuple[str, ...], given: Mapping[str, object]) -> Iterator[Problem]:
    names = [name or str(value) for name, value in given.items() if value is not None]
    if len(names) > 1:
        yield place, f"{' and '.join(names)} each say what work costs: keep one of them"
