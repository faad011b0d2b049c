"""YAML file -> `Config`, with every problem found in one pass and placed on its line.

A problem reads `FILE:LINE: field: what is wrong (found ...)`. `${VAR}` and `${VAR:-default}` in a value come
from the environment. Relative paths in the file are relative to the file's folder (`LoadedConfig.base_dir`).
"""

from __future__ import annotations

import copy
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from dataloader_svc.config.cross import cross_problems
from dataloader_svc.config.evaluation import of_training, places, with_evaluation
from dataloader_svc.config.schema import FIELDS_ALONE, Config, MixtureStep
from dataloader_svc.config.strategy_function import read_strategy
from dataloader_svc.errors import ConfigProblems
from dataloader_svc.registry import nearest

Place = tuple[str | int, ...]

SECRETS: tuple[Place, ...] = (("security", "token"),)
"""Values that no message shows."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where it came from. `lines`: a field's place -> its line, from 1."""

    config: Config
    path: Path
    lines: Mapping[Place, int]

    @property
    def everything(self) -> LoadedConfig:
        """With the sources of evaluation among the others."""
        return self if self.config.evaluation is None else replace(self, config=with_evaluation(self.config))

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths in the file start from."""
        return self.path.parent

    def problem(self, place: Place, message: str) -> str:
        """`message` with file, line and field in front of it."""
        if place[:1] == ("sources",) and (where := places(self.config).get(str(place[1]))) is not None:
            place = (*where, *place[2:])
        return _problem(self.path, self.lines, place, message)


def load_config(path: str | Path, environ: Mapping[str, str] | None = None) -> LoadedConfig:
    """Read and check a configuration file.

    Raises ConfigProblems with a line for each problem: unreadable file, broken YAML, unknown or missing
    fields, wrong values, and what is wrong between fields.
    """
    loaded, problems = read_config(path, environ)
    if problems or loaded is None:
        raise ConfigProblems(problems)
    return loaded


def read_config(
    path: str | Path, environ: Mapping[str, str] | None = None
) -> tuple[LoadedConfig | None, list[str]]:
    """The same for who goes on looking: the problems, and the configuration as far as there is one.

    Where problems are given, optional fields that are wrong have their defaults in it, so that what is fine
    can be held against the data in the same pass; None where a required one is wrong.
    """
    path = Path(path).absolute()
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return None, [f"{path}: not UTF-8 text: {error}"]
    except OSError as error:
        return None, [f"{path}: can't be read: {error.strerror}"]
    reader = _Reader(path, os.environ if environ is None else environ)
    try:
        data = reader.read(text)
    except ConfigProblems as error:
        return None, error.problems
    if not isinstance(data, dict):
        return None, [f"{path}:1: expected a mapping of fields, found {type(data).__name__}"]
    data, noted = read_strategy(data, path.parent)
    config, found = _validate(data, reader.problems + noted, reader.written)
    problems = {_problem(path, reader.lines, place, message) for place, message in found}
    loaded = None if config is None else LoadedConfig(of_training(config), path, reader.lines)
    return loaded, sorted(problems, key=lambda line: (_line_number(line), line))


def _validate(
    data: dict[str, Any], noted: list[tuple[Place, str]], written: Mapping[Place, str]
) -> tuple[Config | None, list[tuple[Place, str]]]:
    """The configuration, and what is wrong: `noted` while reading, in a field, and between fields."""
    found = list(noted)
    try:
        Config.model_validate(data, context=FIELDS_ALONE)
    except ValidationError as error:
        known = {place for place, _ in noted}
        found += [(place, message) for place, message in _explain(error, written) if place not in known]
    try:
        config = Config.model_validate(_without(data, found), context=FIELDS_ALONE)
    except ValidationError:
        return None, found
    known = {place for place, _ in found}
    return config, found + [problem for problem in cross_problems(config) if problem[0] not in known]


def _without(data: dict[str, Any], found: list[tuple[Place, str]]) -> dict[str, Any]:
    """A copy of `data` that lacks the fields found to be wrong, as far as others do not depend on them."""
    rest = copy.deepcopy(data)
    for place, _ in found:
        *path, last = place or ("",)
        if path[:1] == ["mixture"] or path == ["sources"]:
            continue  # without a source, or a weight, what names it would look wrong
        inner: Any = rest
        for key in path:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(last, None)
    return rest


def _problem(path: Path, lines: Mapping[Place, int], place: Place, message: str) -> str:
    known = place
    while known and known not in lines:
        known = known[:-1]
    name = ".".join(str(part) for part in place)
    return f"{path}:{lines.get(known, 1)}: {name + ': ' if name else ''}{message}"


def _line_number(problem: str) -> int:
    match = re.search(r":(\d+): ", problem)
    return int(match[1]) if match else 0


class _Reader:
    """YAML nodes -> plain values, remembering the line of each field and what was odd on the way."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self.environ = environ
        self.lines: dict[Place, int] = {}
        self.problems: list[tuple[Place, str]] = []
        self.written: dict[Place, str] = {}
        """What stands in the file where a value is from the environment: that one may be a secret."""

    def read(self, text: str) -> Any:
        self._loader = yaml.SafeLoader(text)
        try:
            node = self._loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigProblems([f"{self.path}:{line}: not valid YAML: {error.problem}"]) from None
        except yaml.YAMLError as error:
            raise ConfigProblems([f"{self.path}:1: not valid YAML: {error}"]) from None
        data = {} if node is None else self._value(node, ())
        for place in SECRETS:
            if place in self.lines and place not in self.written:
                self.problems.append((place, "a secret is not written here: ${NAME}, from the environment"))
        return data

    def _value(self, node: yaml.Node, place: Place) -> Any:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*place, number)) for number, item in enumerate(node.value)]
        return self._scalar(node, place)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        self._loader.flatten_mapping(node)  # merge keys: <<: *defaults
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            where = (*place, key)
            if key in result:
                self._note(key_node, where, f"given twice (first on line {self.lines[where]})")
                continue
            self.lines[where] = key_node.start_mark.line + 1
            result[key] = self._value(value_node, where)
        return result

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.ScalarNode) and "${" in node.value:
            self.written[place] = node.value
            text = re.sub(
                r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}",
                lambda m: self._env(m, node, place),
                node.value,
            )
            plain = node.style is None
            tag = self._loader.resolve(yaml.ScalarNode, text, (plain, not plain))  # type: ignore[no-untyped-call]
            node = yaml.ScalarNode(tag, text, node.start_mark, node.end_mark, node.style)
        try:
            return self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self._note(node, place, f"can't be read: {error}")
            return None

    def _env(self, match: re.Match[str], node: yaml.Node, place: Place) -> str:
        value = self.environ.get(match[1], match[2])
        if value is None:
            self._note(
                node,
                place,
                f"environment variable {match[1]} is not set; set it or write ${{{match[1]}:-default}}",
            )
            return ""
        return value

    def _note(self, node: yaml.Node, place: Place, message: str) -> None:
        self.lines[place] = node.start_mark.line + 1
        self.problems.append((place, message))


def _explain(error: ValidationError, written: Mapping[Place, str]) -> list[tuple[Place, str]]:
    """Pydantic's errors as places and sentences; unions count once."""
    found: dict[Place, str] = {}
    for item in error.errors():
        place, model = _walk(item["loc"])
        found.setdefault(place, _sentence(dict(item), model, place, written.get(place)))
    return list(found.items())


def _sentence(item: dict[str, Any], model: type[BaseModel] | None, place: Place, written: str | None) -> str:
    kind = item["type"]
    if kind == "extra_forbidden" and model is not None:
        allowed = sorted(model.model_fields)
        return f"unknown field{nearest(str(place[-1]), allowed)}; allowed: {', '.join(allowed)}"
    if kind == "missing":
        return "is required"
    message = str(item["msg"]).removeprefix("Value error, ")
    value = item.get("input") if written is None else written
    if place in SECRETS:
        value = None
    shown = "" if isinstance(value, dict | list) or value is None else f" (found {value!r})"
    return message[0].lower() + message[1:] + shown


def _walk(loc: tuple[str | int, ...]) -> tuple[Place, type[BaseModel] | None]:
    """The YAML place of a pydantic location, and the model that its last key belongs to.

    pydantic adds the member of a union to the location (`image`, `list[str]`, 0); those parts are no keys.
    """
    place: list[str | int] = []
    current: Any = Config
    model: type[BaseModel] | None = None
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            model = current
            info = current.model_fields.get(str(part))
            if current is MixtureStep and part == "weights":
                current = dict[str, float]
                continue
            place.append(part)
            current = info.annotation if info else None
            continue
        origin = typing.get_origin(current)
        args = typing.get_args(current)
        if origin in (typing.Union, types.UnionType):
            member = _member(args, part)
            if member is None or str(part) == getattr(member, "__name__", None):
                current = member
                if member is None:
                    break
                continue
            current = member
            origin, args = typing.get_origin(current), typing.get_args(current)
            if isinstance(current, type) and issubclass(current, BaseModel):
                model = current
                place.append(part)
                info = current.model_fields.get(str(part))
                current = info.annotation if info else None
                continue
        if origin in (list, dict):
            place.append(part)
            current = args[-1]
            model = None
            continue
        break
    return tuple(place), model


def _member(args: tuple[Any, ...], part: str | int) -> Any:
    """The union's member that pydantic means by `part`: by its name, or the model that has such a key."""
    for arg in args:
        if getattr(arg, "__name__", None) == part:
            return arg
    models = [arg for arg in args if isinstance(arg, type) and issubclass(arg, BaseModel)]
    return next((model for model in models if str(part) in model.model_fields), models[0] if models else None)
