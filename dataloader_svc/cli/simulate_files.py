"""Steps drawn from a file of sample lengths: the mixture, costs and defaults of `simulate --lengths`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dataloader_balancers import LlmCost
from dataloader_svc.cli.simulate_work import Work
from dataloader_svc.errors import ConfigError, SourceError
from dataloader_svc.registry import nearest

TEXT = "text"
"""Name of the part of a mixture that is drawn from a lognormal distribution, not from the file."""

DEFAULT_MIXTURE: Mapping[str, float] = {
    "ai2d_train_12k": 0.10,
    "chartqa_train_18k": 0.15,
    "docvqa_train_10k": 0.15,
    "synthdog_en": 0.10,
    TEXT: 0.50,
}
"""Of the public length file; other files are mixed by their numbers of rows."""

LLM = LlmCost(24_576.0, 1.0)
"""Of a model of width 2048: 12 times the width to one (`dataloader_balancers.cost`)."""

TILE_COST = 9.4e6
"""An encoder tile in the same unit: 1,025 patches through 0.3 billion weights, beside 16 layers of that
width. Matters where times of both phases are added up, not for max / mean.
"""

PATCH_COST = TILE_COST / 1025

TEXT_MU, TEXT_SIGMA = 6.5, 1.4


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Tokens and encoder tiles of samples, int64 (n,), by dataset."""

    tokens: Mapping[str, NDArray[np.int64]]
    tiles: Mapping[str, NDArray[np.int64]]


def read_columns(path: Path, wanted: Mapping[str, str]) -> pa.Table:
    """The columns `wanted` (name -> what it must hold) of a parquet file.

    SourceError names the file, the columns that it lacks and those that it has, or the first null.
    """
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        lacking = [name for name in wanted if name not in names]
        if lacking:
            needed = "; ".join(f"{name}: {meaning}" for name, meaning in wanted.items())
            raise SourceError(
                f"{path}: no column {', '.join(map(repr, lacking))}; it has {', '.join(names)}. "
                f"Needed are {needed}"
            )
        table = file.read(list(wanted))
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: can't be read as parquet: {error}") from None
    if table.num_rows == 0:
        raise SourceError(f"{path}: holds no rows")
    for name in wanted:
        column = table[name]
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise SourceError(f"{path}: row {row}: {name} is null")
    return table


def numbers(path: Path, table: pa.Table, name: str, least: int, most: int = 2**40) -> NDArray[np.int64]:
    """A column of whole numbers, int64 (n,). SourceError names the first row outside `least` to `most`."""
    column = table[name]
    if not pa.types.is_integer(column.type):
        raise SourceError(f"{path}: column {name} is {column.type}; whole numbers are needed")
    raw = column.to_numpy()
    wrong = np.flatnonzero((raw < least) | (raw > most))
    if len(wrong):
        raise SourceError(f"{path}: row {wrong[0]}: {name} is {raw[wrong[0]]}; allowed are {least} to {most}")
    values: NDArray[np.int64] = raw.astype(np.int64)
    return values


def words(path: Path, table: pa.Table, name: str) -> NDArray[np.object_]:
    """A column of strings. SourceError where it holds something else."""
    try:
        return np.asarray(table[name].cast(pa.string()).to_pylist(), object)
    except pa.ArrowException:
        raise SourceError(f"{path}: column {name} is {table[name].type}; text is needed") from None


def read_lengths(path: Path) -> Lengths:
    """See `read_columns`."""
    table = read_columns(
        path,
        {
            "dataset": "its name",
            "tokens": "of the sample, 1 and more",
            "image_tiles": "that the encoder sees, 0 and more",
        },
    )
    dataset = words(path, table, "dataset")
    tokens, tiles = numbers(path, table, "tokens", 1), numbers(path, table, "image_tiles", 0)
    names = sorted(set(dataset.tolist()))
    return Lengths(
        {name: tokens[dataset == name] for name in names}, {name: tiles[dataset == name] for name in names}
    )


def mixture_of(lengths: Lengths, given: Mapping[str, float] | None) -> dict[str, float]:
    """Shares by dataset, which add up to 1. Default: DEFAULT_MIXTURE where the file has its datasets, else by
    numbers of rows. ConfigError for one that the file does not have.
    """
    known = [*lengths.tokens, TEXT]
    if given is None:
        if set(DEFAULT_MIXTURE) <= set(known):
            given = DEFAULT_MIXTURE
        else:
            given = {name: float(len(values)) for name, values in lengths.tokens.items()}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"--mix: no dataset {name!r}; the file has {', '.join(known)}{nearest(name, known)}"
            )
    total = sum(given.values())
    if total <= 0:
        raise ConfigError("--mix: all weights are 0")
    return {name: weight / total for name, weight in given.items()}


def draw_steps(
    lengths: Lengths,
    mixture: Mapping[str, float],
    items: int,
    steps: int,
    *,
    seed: int = 0,
    sequence_length: int = 32_768,
    cost: LlmCost = LLM,
    tile_cost: float = TILE_COST,
    cp: int = 1,
) -> Iterator[Work]:
    """`steps` steps of `items` samples each, drawn with replacement. Longer ones are cut to
    `sequence_length`; step s depends on (seed, s) alone. `cp` ranks share each sample.
    """
    names = list(mixture)
    for step in range(steps):
        rng = np.random.default_rng([seed, step])
        source = rng.choice(len(names), items, p=[mixture[name] for name in names])
        tokens = np.empty(items, np.int64)
        tiles = np.zeros(items, np.int64)
        for number, name in enumerate(names):
            mine = np.flatnonzero(source == number)
            if name == TEXT:
                tokens[mine] = np.clip(rng.lognormal(TEXT_MU, TEXT_SIGMA, len(mine)), 1, sequence_length)
            else:
                row = rng.integers(len(lengths.tokens[name]), size=len(mine))
                tokens[mine], tiles[mine] = lengths.tokens[name][row], lengths.tiles[name][row]
        tokens = np.minimum(tokens, sequence_length)
        yield Work(cost.of_documents(tokens) / cp, tile_cost * tiles / cp, tokens)


def as_json(mixture: Mapping[str, float], sequence_length: int, seed: int) -> dict[str, Any]:
    """What was drawn from what."""
    return {
        "mixture": dict(mixture),
        "text": {"lognormal": [TEXT_MU, TEXT_SIGMA], "longest": sequence_length},
        "llm_cost": {"linear": LLM.linear, "quadratic": LLM.quadratic},
        "tile_cost": TILE_COST,
        "seed": seed,
    }
