"""Which files of a Hugging Face dataset folder are the data of a split: the rules of the `datasets` library.

Given are the names of all files and a way to read the small ones; nothing else is touched. In this order:

1. what `save_to_disk` leaves: dataset_dict.json, state.json with its list of files;
2. `configs:` in the header of README.md, with `data_files` or `data_dir`;
3. data/train-00000-of-00005.parquet, for any split;
4. a folder, and then a file, called after a split, as a word of its name (train, training; validation, valid,
   val, dev; test, testing, eval, evaluation);
5. all files are `train`.

Rules 3 to 5: https://huggingface.co/docs/datasets/repository_structure
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from dataloader_svc.errors import SourceError
from dataloader_svc.registry import nearest

FORMATS: Mapping[str, str] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".tar": "webdataset",
    ".csv": "manifest",
    ".tsv": "manifest",
}
"""Suffix -> format that reads it."""

_COMPRESSED = (".gz", ".zst")
_MAY_BE_COMPRESSED = ("jsonl", "webdataset")

_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARDED = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]+")
_NOT_DATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}

Read = Callable[[str], bytes]


def data_files(names: Sequence[str], read: Read, config: str | None, split: str) -> list[str]:
    """The names, of those given, that hold a split, in an order that never changes; at least one.

    names   paths below the folder, with slashes
    read    gives the content of one of them
    config  name of a configuration in README.md, or else of a folder; None: the default one

    Raises SourceError for a split or configuration that is not there, listing those that are.
    """
    if "dataset_dict.json" in names:
        known = [str(name) for name in _listed(_json(read, "dataset_dict.json").get("splits"))]
        return _saved(names, read, f"{_known('split', split, known)}/")
    if "state.json" in names:
        saved = _json(read, "state.json").get("_split")
        if saved is not None:
            _known("split", split, [str(saved)])
        return _saved(names, read, "")
    header = _header(read("README.md")) if "README.md" in names else {}
    configs = [entry for entry in _listed(header.get("configs")) if isinstance(entry, dict)]
    data = [name for name in names if is_data(name)]
    if configs:
        return _configured(data, _chosen(configs, config), split)
    if config is not None:
        folders = sorted({name.partition("/")[0] for name in data if "/" in name})
        data = _below(data, _known("configuration", config, folders))
    return _of_split(data, split)


def split_names(names: Sequence[str], read: Read) -> list[tuple[str | None, str]]:
    """(configuration, split) of all data that there is: what `data_files` may be asked for.

    Raises SourceError where a description of the folder is broken.
    """
    if "dataset_dict.json" in names:
        return [(None, str(name)) for name in _listed(_json(read, "dataset_dict.json").get("splits"))]
    if "state.json" in names:
        return [(None, str(_json(read, "state.json").get("_split") or "train"))]
    header = _header(read("README.md")) if "README.md" in names else {}
    configs = [entry for entry in _listed(header.get("configs")) if isinstance(entry, dict)]
    data = [name for name in names if is_data(name)]
    found: dict[tuple[str | None, str], None] = {}
    for entry in configs:
        config = str(entry.get("config_name", "default"))
        listed = [part for part in _listed(entry.get("data_files")) if isinstance(part, dict)]
        inside = _below(data, str(entry.get("data_dir") or ""))
        known = [str(part.get("split", "train")) for part in listed] or (
            ["train"] if entry.get("data_files") else [kind for _, kind in _pairs(inside)]
        )
        found |= dict.fromkeys((config, split) for split in known)
    return list(found) if configs else [(None, split) for split in dict.fromkeys(k for _, k in _pairs(data))]


def is_data(name: str) -> bool:
    """Whether it is called like a file that a format here reads."""
    return PurePosixPath(name).name not in _NOT_DATA and format_name(name) is not None


def format_name(name: str) -> str | None:
    """The format that reads a file, by its suffix, or by that in front of .gz or .zst."""
    path = PurePosixPath(name.lower())
    if path.suffix not in _COMPRESSED:
        return FORMATS.get(path.suffix)
    found = FORMATS.get(path.with_suffix("").suffix)
    return found if found in _MAY_BE_COMPRESSED else None


def _saved(names: Sequence[str], read: Read, folder: str) -> list[str]:
    """The files that state.json lists, in its order, which is that of the rows."""
    state_name = f"{folder}state.json"
    if state_name not in names:
        raise SourceError(f"{state_name} is missing; was the dataset saved to the end?")
    state = _json(read, state_name)
    if state.get("_indices_data_files"):
        raise SourceError(
            f"{state_name}: rows are chosen by an index beside the data; "
            "save it again with flatten_indices().save_to_disk()"
        )
    listed = [entry.get("filename") for entry in _listed(state.get("_data_files")) if isinstance(entry, dict)]
    files = [f"{folder}{name}" for name in listed]
    missing = [name for name in files if name not in names]
    if missing or not files:
        raise SourceError(f"{state_name}: {', '.join(missing[:3]) or 'no file'} is not there")
    return files


def _chosen(configs: Sequence[Mapping[str, Any]], config: str | None) -> Mapping[str, Any]:
    """The configuration of that name; without a name the default one."""
    named = {str(entry.get("config_name", "default")): entry for entry in configs}
    if config is not None:
        return named[_known("configuration", config, list(named))]
    default = [name for name, entry in named.items() if entry.get("default") is True] or ["default"]
    if len(named) > 1 and default[0] not in named:
        raise SourceError(f"has configurations {', '.join(named)}; name one with options: {{config: ...}}")
    return named.get(default[0]) or next(iter(named.values()))


def _configured(data: Sequence[str], entry: Mapping[str, Any], split: str) -> list[str]:
    """Files of an entry of `configs:`. `data_files`: a pattern, several, or one a split."""
    inside = str(entry.get("data_dir") or "")
    found = entry.get("data_files")
    if found is None:
        return _of_split(_below(data, inside), split)
    if not any(isinstance(part, dict) for part in _listed(found)):
        found = [{"split": "train", "path": found}]
    patterns: dict[str, list[str]] = {}
    for part in _listed(found):
        if not isinstance(part, dict) or "path" not in part:
            raise SourceError(f"README.md: data_files has an entry without a path: {part!r}")
        patterns.setdefault(str(part.get("split", "train")), []).extend(map(str, _listed(part["path"])))
    matched: dict[str, None] = {}
    for pattern in patterns[_known("split", split, list(patterns))]:
        whole = str(PurePosixPath(inside) / pattern)
        files = [name for name in data if _glob(whole).fullmatch(name)]
        if not files:
            raise SourceError(f"README.md: data_files: nothing that can be read is called {whole!r}")
        matched |= dict.fromkeys(_sorted(files))
    return _one_format(matched)


def _of_split(data: Sequence[str], split: str) -> list[str]:
    """Rules 3 to 5."""
    pairs = _pairs(data)
    if not pairs:
        raise SourceError(f"has no data: none of its files ends with {', '.join(FORMATS)}")
    _known("split", split, [kind for _, kind in pairs])
    return _one_format(_sorted(name for name, kind in pairs if kind == split))


def _pairs(data: Sequence[str]) -> list[tuple[str, str]]:
    """(name, split), by the first of rules 3 to 5 that any file follows."""
    sharded = [(name, match[1]) for name in data if (match := _SHARDED.fullmatch(name))]
    by_folder = [(name, kind) for name in data for kind in _named_after(name.rpartition("/")[0].split("/"))]
    by_file = [(name, kind) for name in data for kind in _named_after([name.rpartition("/")[2]])]
    return sharded or by_folder or by_file or [(name, "train") for name in data]


def _named_after(parts: Sequence[str]) -> list[str]:
    """Splits whose keyword is a word of one of the names."""
    return [
        kind
        for kind, words in _KEYWORDS.items()
        if any(re.search(rf"(?:^|[-._ 0-9])(?:{'|'.join(words)})(?:[-._ 0-9]|$)", part) for part in parts)
    ]


def _one_format(names: Iterable[str]) -> list[str]:
    """The files of the format that most have, as `datasets` chooses."""
    files = list(names)
    counts = Counter(format_name(name) for name in files)
    most = min(counts, key=lambda kind: (-counts[kind], str(kind)))
    return [name for name in files if format_name(name) == most]


def _below(names: Sequence[str], folder: str) -> list[str]:
    prefix = f"{folder.strip('./')}/"
    return [name for name in names if prefix == "/" or name.startswith(prefix)]


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(set(names))


def _glob(pattern: str) -> re.Pattern[str]:
    """`*` and `?` inside a name, `[..]`, `**` through folders."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", pattern)
    words = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = [
        words.get(part) or (re.escape(part) if number % 2 == 0 else f"[{part[1:-1].replace('!', '^', 1)}]")
        for number, part in enumerate(parts)
    ]
    try:
        return re.compile("".join(text))
    except re.error as error:
        raise SourceError(f"README.md: data_files: {pattern!r} is no pattern: {error}") from error


def _known(kind: str, name: str, known: Sequence[str]) -> str:
    """The name itself, or SourceError with those that there are."""
    if name in known:
        return name
    there = list(dict.fromkeys(known))
    raise SourceError(f"has no {kind} {name!r}; found: {', '.join(there) or 'none'}{nearest(name, there)}")


def _header(readme: bytes) -> Mapping[str, Any]:
    """The YAML between the first two lines of dashes."""
    match = re.match(r"\s*---\s*\n(.*?)\n---\s*(?:\n|$)", readme.decode(errors="replace"), re.DOTALL)
    if match is None:
        return {}
    try:
        value = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        raise SourceError(f"README.md: the header is not YAML: {str(error).splitlines()[0]}") from error
    return value if isinstance(value, dict) else {}


def _json(read: Read, name: str) -> Mapping[str, Any]:
    try:
        value = json.loads(read(name))
    except ValueError as error:
        raise SourceError(f"{name}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{name}: must be an object")
    return value


def _listed(value: object) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
