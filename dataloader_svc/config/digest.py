"""Which settings change what is read, and the comparison of two of them on resume.

A setting belongs here when another value would give a sample of the same name (source, epoch, position)
other content. Mesh, batch, weights, packing and memory do not. What the files hold is covered by each
source's index digest (`sources/index.py`), so paths do not count: data may move.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from dataloader_svc.config.code_files import module_file, split_function
from dataloader_svc.config.schema import Config, Source, TokenizerBackend
from dataloader_svc.config.tokenizer_files import IDS_DEPEND_ON, read_settings, vocabulary_files

_JOB_FIELDS = (
    "seed",
    "tokenizer",
    "images",
    "media_tokens",
    "markers",
    "eos",
    "bos",
    "tokenizer_backend",
    "tokenizer_options",
    "chat_template",
    "mel",
)
_SOURCE_FIELDS = (
    "format",
    "text",
    "messages",
    "image",
    "video or audio",
    "shuffle",
    "extent",
    "chat_template",
    "options",
    "control_words",
    "transforms",
    "interleaved",
    "input_ids",
)


_PAIR_FIELDS = ("preference", "sequence_length for truncated pairs")
"""What else counts of a source of preference pairs: the loader shortens those that are too long."""


def read_digest(config: Config, base_dir: Path) -> dict[str, str]:
    """A short hash of each setting that changes what is read: `{"job": "a1b2-...", "source/web": "..."}`.

    The hashes of one entry stand in the order of the field lists above, so that a difference can be named
    at 5 bytes a field: some 25 KB for 300 sources. Files that settings name count by their content.
    """
    job = {name: getattr(config, name) for name in _JOB_FIELDS if name != "chat_template"}
    settings = read_settings(base_dir / config.tokenizer)
    job["tokenizer"] = _tokenizer_hash(base_dir / config.tokenizer, settings)
    own = any(source.is_chat and source.chat_template is None for source in config.sources.values())
    job["chat_template"] = settings.get("chat_template") if own else None
    digest = {"job": _short(job[name] for name in _JOB_FIELDS)}
    for name, source in config.sources.items():
        values = {field: getattr(source, field, None) for field in _SOURCE_FIELDS}
        values["video or audio"] = source.video if source.audio is None else [source.video, source.audio]
        if source.chat_template is not None:
            values["chat_template"] = _file_hash(base_dir / source.chat_template)
        values["transforms"] = _transforms(source, base_dir)
        values["input_ids"] = [source.input_ids, source.loss_mask, source.id_type, source.append_eos]
        known = [values[field] for field in _SOURCE_FIELDS]
        if source.preference is not None:
            known += [source.preference, source.too_long == "truncate" and config.sequence_length]
        digest[f"source/{name}"] = _short(known)
        if source.was is not None:
            digest[f"was/{name}"] = source.was
    return digest


def first_name(digest: Mapping[str, str], name: str) -> str:
    """The name that keys a source's order: the first that it had in the job."""
    return digest.get(f"was/{name}", name)


def renamings(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Name under `old` -> name under `new`, of the sources that both have: those with one first name."""
    now = {first_name(new, name): name for name in _sources(new)}
    first = {name: first_name(old, name) for name in _sources(old)}
    return {name: now[it] for name, it in first.items() if it in now}


def _sources(digest: Mapping[str, str]) -> list[str]:
    return [entry.removeprefix("source/") for entry in digest if entry.startswith("source/")]


def compare(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Names of the fields that differ, as in the YAML. Added and removed sources are no difference."""
    both = sorted(old.keys() & new.keys())
    names = [entry.removeprefix("source/") for entry in both if entry.startswith("source/")]
    changed = [f"sources.{name}.was" for name in names if first_name(old, name) != first_name(new, name)]
    for entry in (entry for entry in both if not entry.startswith("was/")):
        fields = _JOB_FIELDS if entry == "job" else (*_SOURCE_FIELDS, *_PAIR_FIELDS)
        prefix = "" if entry == "job" else f"sources.{entry.removeprefix('source/')}."
        parts = zip(fields, old[entry].split("-"), new[entry].split("-"), strict=False)
        changed += [prefix + field for field, before, after in parts if before != after]
    return changed


def config_hash(config: Config, base_dir: Path) -> str:
    """One hash over everything that changes the *plans* of a job: a log belongs to one of these.

    Covers the mixture, packing and batch besides what `read_digest` covers; not mesh, memory or processes,
    which change neither selection nor packing, nor how weights follow losses: what that did is in the log.
    """
    plan = config.model_dump(
        mode="json",
        include={"sequence_length", "mixture", "last_batch"},
        exclude={"mixture": {"adaptive"}},
    )
    plan["num_sequences"] = config.num_sequences
    plan["pack"] = config.strategy.pack
    if ":" in config.strategy.pack:
        plan["pack_code"] = _code_hash(config.strategy.pack, base_dir)
    plan["cost"] = [config.strategy.cost, *_cost_files(config, base_dir)]
    plan["overdraw"] = config.strategy.overdraw
    if config.strategy.fill != 1:
        plan["fill"] = config.strategy.fill
    if config.strategy.limits.given:
        plan["limits"] = config.strategy.limits.given
    if config.strategy.waiting is not None:
        plan["wait"] = config.strategy.waiting
    plan["num_samples"] = config.global_batch.samples
    if config.last_batch == "drop":
        plan["full_in"] = config.global_batch.unit
    plan["too_long"] = {name: source.too_long for name, source in config.sources.items()}
    plan["paths"] = {name: source.paths for name, source in config.sources.items()}
    return _hash([plan, read_digest(config, base_dir)], size=16)


def made_plans(digest: str, config: Config, base_dir: Path) -> bool:
    """Whether a job of this configuration could have the `config_hash` `digest`.

    `auto` stands for any tokenizer backend: which one it was is decided when the job is started.
    """
    backends = [config.tokenizer_backend]
    if config.tokenizer_backend == "auto":
        backends += get_args(TokenizerBackend)
    decided = (config.model_copy(update={"tokenizer_backend": backend}) for backend in backends)
    return any(config_hash(one, base_dir) == digest for one in decided)


def _short(values: Iterable[Any]) -> str:
    return "-".join(_hash(value, size=2) for value in values)


def _hash(value: Any, size: int) -> str:
    text = json.dumps(value, sort_keys=True, default=lambda model: model.model_dump(mode="json"))
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def _file_hash(path: Path) -> str:
    """Of a file's content. A missing file is found by `check`."""
    if not path.is_file():
        return "missing"
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def _transforms(source: Source, base_dir: Path) -> list[object]:
    """The entries as they stand, and behind each `map` what the file of its function holds."""
    values: list[object] = []
    for entry in source.transforms:
        values.append(entry)
        called = entry.get("map")
        name = called.get("function") if isinstance(called, dict) else called
        if isinstance(name, str):
            file = module_file(name.partition(":")[0], base_dir)
            values.append("missing" if file is None else _file_hash(file))
    return values


def _cost_files(config: Config, base_dir: Path) -> Iterator[str]:
    """What the files hold that costs come from: plans are other ones where they change."""
    for origin in (config.strategy.cost.llm, config.strategy.cost.encoder):
        if origin.config is not None:
            yield _file_hash(base_dir / origin.config)
        if origin.function is not None:
            yield _code_hash(origin.function, base_dir)


def _code_hash(function: str, base_dir: Path) -> str:
    """Of the file of `module:function`."""
    file = module_file(split_function(function)[0], base_dir)
    return "missing" if file is None else _file_hash(file)


def _tokenizer_hash(path: Path, settings: Mapping[str, Any]) -> list[object]:
    """Of the vocabulary's files, and of the settings beside them that change ids."""
    files = [_file_hash(file) for file in vocabulary_files(path)]
    return [files, {name: settings[name] for name in IDS_DEPEND_ON if name in settings}]
