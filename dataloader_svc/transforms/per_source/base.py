"""What a per-source transform has to say: an entry of a source's `transforms:` in the YAML.

A transform is one class in one file, registered by name: `@TRANSFORMS.register("name")`, or the entry-point
group `dataloader_svc.transforms`. It overrides the hooks that it needs; the rest mean "no change":

    keep      which rows of the index exist at all: nothing else of the source is read, in any epoch
    columns   the fields of a row that it looks at, mapped or not
    prepare   resolve what lies outside the YAML (a user's function), once a process
    apply     look at the rows of a block: change them, or say that one is out
    vision    the geometry of the source's pictures and frames
    crop      the one size that pictures are cut to

Order: `keep` first, since it decides what is read, then `apply` in the order of the list. A transform is a
pure function of its options and the row: a block may be read twice, by two processes, and must be the same.
Knows no format and no file; `sources/reduce.py` calls `keep`, `loader/read.py` calls `apply`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.config.options import checked_options
from dataloader_svc.config.schema import Model, Source
from dataloader_svc.errors import BadSample, ConfigError, Reason
from dataloader_svc.registry import Registry
from dataloader_svc.transforms.vision import VisionRule


@dataclass(frozen=True, slots=True)
class PictureCrop:
    """Every picture becomes this many pixels: scaled until it covers them, then cut.

    random   where: drawn by the job's seed and the sample's name, else the middle
    """

    height: int
    width: int
    random: bool = False


FILTERED = BadSample(Reason.FILTERED)
"""Of a row that a transform leaves out on purpose: not delivered, not quarantined, not counted as bad."""


@dataclass(slots=True)
class BlockRows:
    """The n rows of a block, for `Transform.apply` to change in place.

    columns   role (`text`, `messages`, `image`, `video`, ...) -> n values, as in `sources.base.Rows`
    raw       name -> n values, of every transform's `columns`; None where a row lacks one
    out       row -> why it is not delivered: FILTERED, or what is wrong with it. Its values mean nothing
    """

    num_rows: int
    columns: dict[str, list[Any]]
    raw: dict[str, list[Any]] = field(default_factory=dict)
    out: dict[int, BadSample] = field(default_factory=dict)

    def remaining(self) -> Iterator[int]:
        """The rows that are not out."""
        return (row for row in range(self.num_rows) if row not in self.out)


class TransformError(ConfigError):
    """What is wrong with entry `number`, called `name`, of a source's transforms."""

    def __init__(self, number: int, name: str, what: str) -> None:
        super().__init__(f"transforms.{number}.{name}: {what}")
        self.place = ("transforms", number, name)
        self.what = what


class NoOptions(Model):
    """Of a transform that has none."""


class Transform:
    """One transform, made with its checked options.

    Options     what may stand under its name in the YAML
    shorthand   the option that a plain value stands for: `filter: "x > 1"`; empty for none
    """

    Options: ClassVar[type[Model]] = NoOptions
    shorthand: ClassVar[str] = ""

    def __init__(self, options: Model) -> None:
        self.options = options

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the fields that `apply` finds in `BlockRows.raw`; dotted for a field inside one."""
        return ()

    def keep(self, extent_rows: NDArray[np.int64], source: str) -> NDArray[np.int64]:  # noqa: ARG002
        """Of each extent's rows, int64 (E,), how many of the first ones are kept: 0 leaves it out unread."""
        return extent_rows

    def prepare(self, base_dir: Path) -> None:
        """Before the first `apply`. `base_dir`: the folder of the YAML. Raises ConfigError."""

    def apply(self, rows: BlockRows) -> None:
        """Change or leave out rows. May run in several threads. Raises nothing that is one row's fault."""

    def vision(self, rule: VisionRule) -> VisionRule:
        """The geometry instead of `rule`, the one so far. Raises ConfigError where it can't be."""
        return rule

    def crop(self, rule: VisionRule) -> PictureCrop | None:  # noqa: ARG002
        """The size that pictures are cut to. `rule`: after all `vision`. Raises ConfigError."""
        return None


TRANSFORMS: Registry[type[Transform]] = Registry("transform", "dataloader_svc.transforms")

_FIELDS_OF_A_SOURCE = {
    "frames": "video: {frames: ...}",
    "fps": "video: {fps: ...}",
    "tokenize": "control_words",
    "chat_template": "chat_template",
    "mel": "audio",
}
"""What is said elsewhere in a source's YAML, though it can be thought of as a transform."""


def make_transform(entry: Mapping[str, object]) -> Transform:
    """The transform of one entry, e.g. {"max_samples": 1000}. Raises ConfigError that says what is known."""
    ((name, value),) = entry.items()
    try:
        made = TRANSFORMS.get(name)
    except ConfigError as error:
        if name in _FIELDS_OF_A_SOURCE:
            instead = _FIELDS_OF_A_SOURCE[name]
            raise ConfigError(f"{name!r} is no transform but a field of the source: {instead}") from None
        raise error from None
    if not isinstance(value, Mapping):
        if not made.shorthand:
            known = ", ".join(sorted(made.Options.model_fields))
            raise ConfigError(f"expected options, {{name: value, ...}}, of: {known}; found {value!r}")
        value = {made.shorthand: value}
    return made(checked_options(made.Options, value, "transform"))


def make_transforms(source: Source) -> tuple[Transform, ...]:
    """All of a source, in order. Raises TransformError."""
    made = []
    for number, entry in enumerate(source.transforms):
        try:
            made.append(make_transform(entry))
        except ConfigError as error:
            raise TransformError(number, next(iter(entry)), str(error)) from None
    return tuple(made)


def columns_of(transforms: Sequence[Transform]) -> tuple[str, ...]:
    """The fields that any of them looks at, each once."""
    return tuple(dict.fromkeys(name for transform in transforms for name in transform.columns))
