"""What can be known to be wrong before a process is started: everything that needs no rows to be read.

`serve`, `bench`, `preview` and `audit` stop here with all problems at once, and have every source indexed
here, where a person sees how far it is: the processes find the indexes in the cache. `check` goes on and
reads, by the rules that were resolved here: a tokenizer takes seconds to load, so it is loaded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from dataloader_client.codecs import PACKAGES, installed
from dataloader_svc.cli.output import progress_bars
from dataloader_svc.config.adaptive_rule import known_rule
from dataloader_svc.config.evaluation import held_out_name
from dataloader_svc.config.load import LoadedConfig, Place, read_config
from dataloader_svc.config.methods import known_balancer, known_packer
from dataloader_svc.config.schema import Config
from dataloader_svc.engine.access import check_files
from dataloader_svc.errors import ConfigError, ConfigProblems, DataloaderError
from dataloader_svc.loader.agreement import Decision, decide_backend
from dataloader_svc.loader.rules import SampleRule, decode_workers, sample_rule
from dataloader_svc.media.workers import WorkerPool
from dataloader_svc.planner.costs import CostError, encoder_cost, llm_cost
from dataloader_svc.sources.base import SOURCES
from dataloader_svc.sources.index import make_format
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.storage import Storage
from dataloader_svc.transforms.per_source import TransformError, make_transforms
from dataloader_svc.transforms.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a look at the configuration gave. Leave it (`with`) when its rules are no longer used.

    loaded     None where the YAML is too broken to go on with
    problems   lines with file, line and field
    rules      by source; those that could not be resolved have a problem instead
    unusable   sources that can't be opened: format or path
    workers    in which the rules decode what can hang; none of them runs before it is needed
    """

    loaded: LoadedConfig | None
    problems: tuple[str, ...]
    rules: Mapping[str, SampleRule]
    unusable: frozenset[str]
    workers: WorkerPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.workers is not None:
            self.workers.close()


def load_checked(path: Path) -> LoadedConfig:
    """A configuration without known problems, its sources indexed; ConfigProblems names all there are."""
    with preflight(path) as found:
        if found.problems or found.loaded is None:
            raise ConfigProblems(list(found.problems))
    readers, problems = _index(found.loaded.everything)
    if problems:
        raise ConfigProblems(problems)
    decision = _decision(found, found.loaded, readers)
    config = found.loaded.config.model_copy(update={"tokenizer_backend": decision.library})
    return replace(found.loaded, config=config)  # so that every process of the job uses the same one


def decision_of(found: Preflight) -> Decision | None:
    """Which library would tokenize the job, and why; None where something else has to be mended first."""
    if found.problems or found.loaded is None:
        return None
    readers, problems = _index(found.loaded.everything)
    return None if problems else _decision(found, found.loaded, readers)


def _decision(found: Preflight, loaded: LoadedConfig, readers: Mapping[str, SourceReader]) -> Decision:
    tokenizer = next(iter(found.rules.values())).tokenizer
    config = loaded.config
    if config.tokenizer_backend != "auto":
        return Decision(config.tokenizer_backend, tokenizer.why)
    with progress_bars() as progress:
        bar = progress.add_task("comparing tokenizers", total=len(readers))
        cache = loaded.base_dir / config.index_cache
        return decide_backend(tokenizer, readers, cache, lambda _: progress.advance(bar))


def _index(loaded: LoadedConfig) -> tuple[dict[str, SourceReader], list[str]]:
    """Index every source, with progress where it takes time; what is wrong, a line each."""
    config, problems = loaded.config, []
    readers: dict[str, SourceReader] = {}
    storage = Storage.of(config, loaded.base_dir)
    with progress_bars() as progress:
        for name, source in config.sources.items():
            bar = progress.add_task(f"indexing {name}", total=None)
            try:
                readers[name] = SourceReader(
                    name,
                    source,
                    loaded.base_dir,
                    loaded.base_dir / config.index_cache,
                    config.seed,
                    lambda done, total, bar=bar: progress.update(bar, completed=done, total=total),  # type: ignore[misc]
                    storage=storage,
                )
            except DataloaderError as error:
                problems.append(loaded.problem(("sources", name), str(error)))
            progress.remove_task(bar)
    counts = {name: reader.num_rows for name, reader in readers.items()}
    return readers, [*problems, *lopsided(loaded, counts)]


def lopsided(loaded: LoadedConfig, rows: Mapping[str, int]) -> Iterator[str]:
    """Shares that are held out and are nothing of their source, or all of it. `rows`: of each source."""
    evaluation = loaded.config.evaluation
    for name, fraction in () if evaluation is None else evaluation.held_out.items():
        left, held_out = rows.get(name), rows.get(held_out_name(name))
        if left is not None and held_out is not None and not (left and held_out):
            yield loaded.problem(
                ("evaluation", "held_out", name),
                f"{fraction:g} of its extents is {'none' if left else 'all'} of them: give another, make "
                f"extents smaller (sources.{name}.extent of jsonl and tar, row groups of parquet), or name "
                "files for evaluation alone",
            )


def preflight(path: Path) -> Preflight:
    """Look at the YAML, formats, paths, tokenizer, token names and templates; all that is wrong."""
    loaded, problems = read_config(path)
    if loaded is None:
        return Preflight(None, tuple(problems), {}, frozenset())
    rules: dict[str, SampleRule] = {}
    everything = loaded.everything
    sources = dict(_source_problems(everything))
    found = [*problems, *(line for lines in sources.values() for line in lines)]
    unusable = frozenset(name for name, lines in sources.items() if lines)
    workers = decode_workers(everything.config)
    found += _rule_problems(everything, rules, unusable, workers)
    found += _cost_problems(loaded)
    found += _security_problems(loaded)
    found += _wire_problems(loaded)
    return Preflight(loaded, tuple(found), rules, unusable, workers)


def _source_problems(loaded: LoadedConfig) -> Iterator[tuple[str, list[str]]]:
    storage = Storage.of(loaded.config, loaded.base_dir)
    for name, source in loaded.config.sources.items():
        lines = []
        try:
            make_transforms(source)
        except TransformError as error:
            lines.append(loaded.problem(("sources", name, *error.place), error.what))
            source = source.model_copy(update={"transforms": []})  # what else is wrong
        try:
            SOURCES.get(source.format)
        except DataloaderError as error:
            lines.append(loaded.problem(("sources", name, "format"), str(error)))
            shards = storage.matches
        else:
            try:
                shards = make_format(source, storage).list_shards
            except DataloaderError as error:
                lines.append(loaded.problem(("sources", name, "options"), str(error)))
                shards = storage.matches
        try:
            shards(source.paths, loaded.base_dir)
        except DataloaderError as error:
            lines.append(loaded.problem(("sources", name, "path"), str(error)))
        yield name, lines


def _rule_problems(
    loaded: LoadedConfig, rules: dict[str, SampleRule], unusable: frozenset[str], workers: WorkerPool
) -> Iterator[str]:
    """Fills `rules`."""
    config = loaded.config
    try:
        tokenizer = Tokenizer.of(config, loaded.base_dir)
    except DataloaderError as error:
        yield loaded.problem(("tokenizer",), str(error))
        return
    told: set[str] = set()
    for place, message in _token_problems(config, tokenizer):
        told.add(message)
        yield loaded.problem(place, message)
    for name in config.sources:
        try:
            rules[name] = sample_rule(config, name, loaded.base_dir, tokenizer, workers)
        except TransformError as error:
            if name not in unusable:  # those have been told
                yield loaded.problem(("sources", name, *error.place), error.what)
        except DataloaderError as error:
            if str(error) not in told:  # every source meets the job's tokens again
                yield loaded.problem(("sources", name), str(error))


def _cost_problems(loaded: LoadedConfig) -> Iterator[str]:
    """Files and functions that costs come from, and functions that pack and balance."""
    for cost in (llm_cost, encoder_cost):
        try:
            cost(loaded.config, loaded.base_dir)
        except CostError as error:
            if error.place[-1] != "model":  # known without a look at files, and told
                yield loaded.problem(error.place, error.what)
    strategy = loaded.config.strategy
    for kind, name, known in (
        ("pack", strategy.pack, known_packer),
        ("balance", strategy.balance, known_balancer),
    ):
        try:
            if ":" in name:  # others are known without a look at files, and told
                known(name, loaded.base_dir)
        except ConfigError as error:
            yield loaded.problem(("strategy", kind), str(error).removeprefix(f"strategy.{kind}: "))
    adaptive = loaded.config.mixture.adaptive
    if adaptive is not None and ":" in adaptive.rule:
        try:
            known_rule(adaptive, loaded.config.sources, loaded.base_dir)
        except ConfigError as error:
            yield loaded.problem(("mixture", "adaptive", "rule"), str(error).partition(": ")[2])


def _security_problems(loaded: LoadedConfig) -> Iterator[str]:
    """Tokens' and certificates' files."""
    try:
        check_files(loaded.config, loaded.base_dir)
    except ConfigError as error:
        yield loaded.problem(("security",), str(error).removeprefix("security."))


def _wire_problems(loaded: LoadedConfig) -> Iterator[str]:
    """A codec that is asked for and isn't installed."""
    wanted = loaded.config.wire.compression
    if wanted in PACKAGES and wanted not in installed():
        package = PACKAGES[wanted].partition(".")[0]
        text = f"{wanted} needs the package {package}: pip install 'dataloader-svc[wire]', or auto"
        yield loaded.problem(("wire", "compression"), text)


def _token_problems(config: Config, tokenizer: Tokenizer) -> Iterator[tuple[Place, str]]:
    """Names that the vocabulary lacks, at the fields that give them."""
    lookups: list[tuple[Place, Callable[[], object]]] = [
        (("eos",), lambda: tokenizer.eos_id(config.eos)),
        (("bos",), lambda: tokenizer.bos_id(config.bos)),
    ]
    for kind, token in config.media_tokens:
        if token is not None:
            lookups.append((("media_tokens", kind), partial(tokenizer.token_id, token)))
    for place, lookup in lookups:
        try:
            lookup()
        except DataloaderError as error:
            yield place, str(error)
