"""What is wrong between fields of a configuration that are each fine by themselves.

`schema.py` asks when a `Config` is built. To add a check, yield its place, as keys from the top, and a
sentence with what was found and what is allowed. Knows nothing of files: `check` finds what those hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dataloader_balancers import BALANCERS, PACKERS
from dataloader_balancers.cost import PRESETS
from dataloader_balancers.strategy.nodes import BOTH, CONCATENATE
from dataloader_svc.config.adaptive_rule import adaptive_problems
from dataloader_svc.config.evaluation import held_out_name, of_evaluation, places
from dataloader_svc.config.methods import NONE
from dataloader_svc.registry import nearest

if TYPE_CHECKING:  # the models ask here while they are built
    from dataloader_svc.config.schema import Config, Images, Strategy

Problem = tuple[tuple[str | int, ...], str]
"""A field's place, as keys from the top, and what is wrong with it."""


def cross_problems(config: Config) -> list[Problem]:
    """What is wrong between fields that are each fine."""
    return [
        *_batch_problems(config),
        *_layout_problems(config),
        *_name_problems(config),
        *_mixture_problems(config),
        *adaptive_problems(config.mixture),
        *_media_problems(config),
        *_sound_problems(config),
        *_strategy_problems(config.strategy),
        *_waiting_problems(config),
        *_ranks_problems(config),
        *_evaluation_problems(config),
    ]


def _evaluation_problems(config: Config) -> Iterator[Problem]:
    """Of the names in it; then all that is wrong with the job that it is, where the training's is not."""
    evaluation, names = config.evaluation, sorted(config.sources)
    if evaluation is None:
        return
    for name in evaluation.held_out:
        if name not in config.sources:
            message = f"no source is called {name!r}; sources: {', '.join(names)}{nearest(name, names)}"
            yield ("evaluation", "held_out", name), message
    taken = {*names, *map(held_out_name, evaluation.held_out)}
    for name in evaluation.sources:
        if name in taken:
            message = "a source of training, or what is held out of one, has this name: use another"
            yield ("evaluation", "sources", name), message
    if not taken.isdisjoint(evaluation.sources) or not evaluation.held_out.keys() <= config.sources.keys():
        return
    known, where = set(cross_problems(config.model_copy(update={"evaluation": None}))), places(config)
    for place, message in cross_problems(of_evaluation(config)):
        if place[0] == "sources" and (known_place := where.get(str(place[1]))) is not None:
            place = (*known_place, *place[2:])
        elif place[0] in ("global_batch", "mesh") and evaluation.global_batch is not None:
            place = ("evaluation", "global_batch", *(place[1:] if place[0] == "global_batch" else ()))
        if (place, message) not in known:
            yield place, message


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
    elif (
        even_counts(config.strategy)
        and sequences is not None
        and sequences % (mesh.dp * batch.per_microbatch)
    ):
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


def _layout_problems(config: Config) -> Iterator[Problem]:
    if config.layout == "packed" and config.pad_to == "longest":
        yield (
            ("pad_to",),
            "the packed layout has no padding: use layout: padded, or leave it out",
        )


def even_counts(strategy: Strategy) -> bool:
    """Whether all dp ranks have as many sequences, none of them empty."""
    return strategy.counts == "equal" and strategy.ranks is None


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
        (("strategy", "pack"), "packer", strategy.pack, (*PACKERS, CONCATENATE, NONE)),
        (("strategy", "balance"), "balancer", strategy.balance, (*BALANCERS, BOTH)),
        (("strategy", "cost", "llm", "model"), "model", strategy.cost.llm.model, PRESETS),
    )
    for place, kind, name, known in named:
        is_function = place[-1] != "model" and name is not None and ":" in name  # `check` imports those
        if name is not None and name not in known and not is_function:
            names = sorted(known)
            yield place, f"unknown {kind} {name!r}; known: {', '.join(names)}{nearest(name, names)}"
    yield from _cost_problems(strategy)
    for name in () if strategy.remedies == "auto" else strategy.remedies:
        if name not in strategy.allowed_remedies:
            why = {
                "unequal": "with counts: any, ranks have unlike numbers in every step",
                "ungroup": "without group_size, there are no groups",
            }[name]
            if strategy.balance == "arrival":
                why = "balance: arrival leaves sequences where they come"
            yield ("strategy", "remedies"), f"{name} changes nothing: {why}; leave one of the two out"


def _waiting_problems(config: Config) -> Iterator[Problem]:
    strategy, samples = config.strategy, config.global_batch.samples
    if strategy.mode == "strict" and strategy.wait is not None:
        yield ("strategy", "wait"), "in strict mode no outlier waits; use mode: relaxed, or leave it out"
    if strategy.pack == CONCATENATE and strategy.fill < 1:
        message = f"{CONCATENATE} fills each sequence before the next: leave fill out, or lower global_batch"
        yield ("strategy", "fill"), message
    if strategy.pack == CONCATENATE and strategy.mode == "relaxed":
        message = f"{CONCATENATE} takes documents as they come, and none waits for others: use mode: strict"
        yield ("strategy", "mode"), message
    if strategy.pack == CONCATENATE and strategy.limits.given:
        message = f"{CONCATENATE} caps sequences by tokens alone: use another packer, or leave it out"
        yield ("strategy", "limits"), message
    if strategy.pack == NONE and samples is None:
        message = "where each document is a sequence, a step is of samples: use global_batch: {samples: N}"
        yield ("strategy", "pack"), message
    if strategy.mode == "relaxed" and samples is not None:
        message = (
            f"a step of {samples} samples has all that are drawn for it, so none can wait: use mode: strict, "
            "or give global_batch in sequences or tokens"
        )
        yield ("strategy", "mode"), message


def _ranks_problems(config: Config) -> Iterator[Problem]:
    strategy, ranks = config.strategy, config.strategy.ranks
    if ranks is None:
        return
    place = ("strategy", "ranks")
    lists = {name: getattr(ranks, name) for name in ("llm", "encoder", "sequences")}
    given = {name: values for name, values in lists.items() if values is not None}
    sizes = {name: len(values) for name, values in given.items()}
    if len(set(sizes.values())) != 1:
        found = ", ".join(f"{name} has {size}" for name, size in sizes.items()) or "it has no list"
        yield place, f"{found}; give one entry for each dp rank in llm, encoder or sequences"
        return
    (size,) = set(sizes.values())
    if config.mesh.dp not in (1, size):
        yield place, f"its lists have {size} entries, and mesh.dp is {config.mesh.dp}: one for each dp rank"
    if strategy.balance not in (BOTH, "arrival"):
        message = f"{strategy.balance} knows no speeds of ranks: use balance: {BOTH}, or arrival"
        yield ("strategy", "balance"), message
    if strategy.group_size is not None:
        yield ("strategy", "group_size"), "ranks that are not alike share all work: leave one of the two out"
    yield from _speed_problems(given, dispatched=strategy.encoder_placement == "dispatch")
    if ranks.sequences is not None:
        speeds = ranks.llm or ranks.encoder or [1.0] * size
        room = sum(most for most, speed in zip(ranks.sequences, speeds, strict=True) if speed > 0)
        if config.num_sequences is None:
            message = "a step in samples has as many sequences as it needs: give global_batch in sequences"
            yield (*place, "sequences"), message
        elif room < config.num_sequences:
            message = (
                f"there is room for {room} sequences, on ranks that are not at 0, and a step has "
                f"{config.num_sequences}"
            )
            yield (*place, "sequences"), message


_LEAST_SPEED = 1e-6
"""Of the fastest rank's speed. A slower one would get nothing: times would be told in nine digits."""


def _speed_problems(given: Mapping[str, list[float]], *, dispatched: bool) -> Iterator[Problem]:
    for name in ("llm", "encoder"):
        values, place = given.get(name), ("strategy", "ranks", name)
        if values is None:
            continue
        top = max(values)
        if top == 0:
            yield place, f"all {len(values)} ranks are at 0; one at least must do the work"
        for rank, speed in enumerate(values):
            if 0 < speed < _LEAST_SPEED * top:
                message = f"rank {rank} has speed {speed:g} beside {top:g}; write 0, and it gets nothing"
                yield (*place, rank), message
    if "llm" in given and "encoder" in given and not dispatched:
        for rank, (llm, encoder) in enumerate(zip(given["llm"], given["encoder"], strict=True)):
            if (llm == 0) != (encoder == 0):
                message = (
                    f"rank {rank} is at {llm:g} in llm and at {encoder:g} in encoder; a rank encodes what it "
                    "trains on: use 0 in both, or in none, or encoder_placement: dispatch"
                )
                yield ("strategy", "ranks"), message
                return


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
