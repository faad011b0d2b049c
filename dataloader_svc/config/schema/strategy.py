"""What work costs, and how documents become sequences and the work of ranks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dataloader_balancers.pack.pieces import LARGEST
from dataloader_balancers.pack.waiting import MAX_AGE, PATIENCE, TOLERANCE
from dataloader_balancers.strategy import StepError
from dataloader_svc.config.code_files import split_function
from dataloader_svc.config.schema.model import Model
from dataloader_svc.config.schema.steps import LIMITED, fields_of


class LlmCostConfig(Model):
    """Predicted work of a document in the language model, from one of: the name of a model, its
    `config.json`, a function, or coefficients: linear * length + quadratic * length^2.
    """

    model: str | None = Field(
        default=None,
        description="A preset, such as 8b or qwen3-30b-a3b (`dataloader_balancers.cost.PRESETS`).",
    )
    config: str | None = Field(
        default=None,
        description="Path of the model's Hugging Face `config.json`, which its shape is read from.",
    )
    function: str | None = Field(
        default=None,
        description="MODULE:FUNCTION, an array of lengths in, an array of costs out; found in the "
        "folder of this file or as Python finds it.",
    )
    linear: float | None = Field(default=None, ge=0, description="Cost of a token.")
    quadratic: float | None = Field(default=None, ge=0, description="Cost of a squared length.")

    @field_validator("function")
    @classmethod
    def _both_parts(cls, value: str | None) -> str | None:
        return _checked_function(value)


class EncoderCostConfig(Model):
    """Predicted work in the media encoder, from one of: the cost of a patch, a `config.json`, a function."""

    patches: float | None = Field(
        default=None,
        ge=0,
        description="Cost of one patch, in 10^9 operations of a forward pass, the unit of the presets: "
        "two for each billion weights of the encoder, so 1, the default, for one of 0.5 billion.",
    )
    config: str | None = Field(
        default=None,
        description="Path of a Hugging Face `config.json` with the encoder in `vision_config`. A patch costs "
        "what it does in a picture of `images.max_pixels`.",
    )
    function: str | None = Field(
        default=None, description="MODULE:FUNCTION, an array of patches in, an array of costs out."
    )

    frames: float = Field(
        default=0.64,
        ge=0,
        description="Cost of one mel frame of sound. The default is that of Whisper large's encoder: 0.64 "
        "billion weights, which work on half as many positions.",
    )

    @field_validator("function")
    @classmethod
    def _both_parts(cls, value: str | None) -> str | None:
        return _checked_function(value)


def _checked_function(value: str | None) -> str | None:
    if value is not None:
        split_function(value)
    return value


class Cost(Model):
    """Cost models by phase; only ratios matter."""

    llm: LlmCostConfig = Field(default_factory=lambda: LlmCostConfig(model="7b"))
    encoder: EncoderCostConfig = Field(default_factory=EncoderCostConfig)


class Wait(Model):
    """How outliers wait in relaxed mode."""

    max_age: int = Field(
        default=MAX_AGE, ge=1, description="Steps after which a document waits no longer, whatever it costs."
    )
    tolerance: float = Field(
        default=TOLERANCE,
        ge=0,
        le=10,
        description="A document waits that costs more than an average sequence by this share. More delays "
        "less and levels less.",
    )
    patience: float = Field(
        default=PATIENCE,
        ge=0,
        le=1e6,
        description="Steps that a step's tokens may wait to spare its time: with 20, documents that would "
        "make a step 1 % longer go in it once they have waited 0.2 steps for each of its tokens. More levels "
        "more and delays more.",
    )


class Limits(Model):
    """The most that a sequence holds beside `sequence_length` tokens. A document above it is cut between its
    media, or left out, by its source's `too_long`.
    """

    patches: int | None = Field(
        default=None, gt=0, le=LARGEST, description="Encoder patches of its pictures and clips. None: any."
    )
    frames: int | None = Field(
        default=None, gt=0, le=LARGEST, description="Mel frames of its sound. None: any number."
    )
    media: int | None = Field(
        default=None, gt=0, le=LARGEST, description="Pictures, clips and sounds. None: any number."
    )

    @property
    def given(self) -> dict[str, int]:
        """Name -> the most, of those that are set."""
        return {name: most for name in LIMITED if (most := getattr(self, name)) is not None}


RemedyName = Literal["unequal", "ungroup"]
"""What a step may be placed with, beyond the strategy as it is configured, where that pays."""

Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Ranks(Model):
    """Ranks that are not alike: lists with an entry for each dp rank of the trainer's mesh."""

    llm: list[Speed] | None = Field(
        default=None,
        min_length=1,
        description="Speed of each dp rank in the language model; only ratios matter. One at 0 gets nothing.",
    )
    encoder: list[Speed] | None = Field(
        default=None,
        min_length=1,
        description="The same in the encoders. Of the two, one that is not given is like the other.",
    )
    sequences: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None,
        min_length=1,
        description="Most sequences of a step that each dp rank has memory for. None: any number.",
    )


class Strategy(Model):
    """How documents become sequences, and sequences the work of ranks: by field, or as a list of primitives
    (`steps`), which sets the fields, or by a function that returns one.
    """

    mode: Literal["strict", "relaxed"] = Field(
        default="strict",
        description="strict: a step is made of what the mixture gives, and only what finds no room waits. "
        "relaxed: documents that are dearer than a whole average sequence wait for their like as well, so "
        "that steps are level; what is placed is then further from the mixture than one sample.",
    )
    wait: Wait | None = Field(
        default=None, description="In relaxed mode, how outliers wait. Default: as its fields' defaults."
    )
    pack: str = Field(
        default="best_fit",
        description="A packer of dataloader_balancers.PACKERS; concatenate, which cuts documents wherever a "
        "sequence is full; none, where each is a sequence of its own; or MODULE:FUNCTION of the signature of "
        "packers.",
    )
    limits: Limits = Field(
        default_factory=Limits,
        description="The most that a sequence holds beside tokens, for the memory of encoders.",
    )
    cost: Cost = Field(default_factory=Cost, description="What work costs, by phase.")
    balance: str = Field(
        default="lpt",
        description="A balancer of dataloader_balancers.BALANCERS, `both` (phases at once), or "
        "MODULE:FUNCTION of the same signature.",
    )
    counts: Literal["equal", "any"] = Field(
        default="equal",
        description="Sequences of a rank in a step. equal: as many on all. any: as many as make ranks "
        "equally busy; all then have the microbatches of the one with the most, some of them empty, without "
        "loss. A trainer must divide its summed loss by `batch.loss_weight_sum`, not by microbatches.",
    )
    ranks: Ranks | None = Field(
        default=None, description="Ranks of unlike speed or memory; needs `balance: both` or `arrival`."
    )
    group_size: int | None = Field(
        default=None,
        gt=0,
        description="Balance within groups of that many neighbouring dp ranks, such as those of a node; "
        "sequences stay in the group they came to. None: over all ranks.",
    )
    encoder_placement: Literal["own", "dispatch"] = Field(
        default="own",
        description="Which rank encodes the media of a document. own: those that have its tokens. "
        "dispatch: the one that has least to encode, if its own has more than its share; its embeddings are "
        "then sent by the trainer, once a microbatch (docs/dispatch.md). Samples and sequences are the same.",
    )
    ranks_per_node: int | None = Field(
        default=None,
        gt=0,
        description="With `encoder_placement: dispatch`, neighbouring dp ranks on one host, between "
        "which media are moved first. None: all are on one.",
    )
    remedies: Literal["auto"] | list[RemedyName] = Field(
        default=[],
        description="What a step may be placed without that can't be level otherwise: of those named the one "
        "that spares most, and `remedy_gain` of its predicted time at least. unequal: equal numbers of "
        "sequences on all ranks, as with `counts: any`; a trainer must divide its summed loss by "
        "`batch.loss_weight_sum`. ungroup: the groups of `group_size`. auto: both, as far as there are any.",
    )
    remedy_gain: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Share of a step's predicted time that a remedy must spare to be applied.",
    )
    context_parallel: Literal["per_document", "per_sequence", "cheaper"] = Field(
        default="per_document",
        description="What the zig-zag cut over cp ranks runs through: each document, the whole sequence, or "
        "of each sequence whichever is predicted to be faster.",
    )
    calibrate: bool = Field(
        default=False,
        description="Fit the costs to the times that trainers give to `loader.report`, and place by the fit "
        "where it gains by the configured costs too. Packing never follows it.",
    )
    overdraw: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="Share of a step's tokens drawn beyond its capacity, so that the packer has small "
        "pieces to fill gaps with; what does not fit waits, first in line for the next step.",
    )
    fill: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of its sequences' room that a step's tokens take, where `global_batch` is in "
        "tokens or sequences. With 0.8 and `pack: variable`, sequences are up to 1.25 times as long as the "
        "mean: shorter where documents are long, so that all are equal work.",
    )
    steps: list[dict[str, Any] | str] = Field(
        default=[],
        description="In place of the fields above: the primitives `mix`, `cost`, `pack`, `distribute`, "
        "`balance`, `split` and `broadcast_at` in their order, as docs/strategies.md has them.",
    )
    function: str | None = Field(
        default=None,
        description="In place of the fields above: MODULE:FUNCTION without arguments, which returns a "
        "`dataloader_balancers.strategy.Strategy`; found in the folder of this file or as Python finds it.",
    )

    @property
    def waiting(self) -> Wait | None:
        """How outliers wait; None: they don't."""
        return None if self.mode == "strict" else self.wait or Wait()

    @property
    def allowed_remedies(self) -> tuple[RemedyName, ...]:
        """What `remedies` names, in the order in which equal ones are preferred."""
        useful: dict[RemedyName, bool] = {
            "ungroup": self.group_size is not None,
            "unequal": self.counts == "equal",
        }
        if self.balance == "arrival":
            return ()
        wanted = useful if self.remedies == "auto" else self.remedies
        return tuple(name for name, is_useful in useful.items() if is_useful and name in wanted)

    @field_validator("pack", "balance", "function")
    @classmethod
    def _both_parts_if_a_function(cls, value: str | None, info: ValidationInfo) -> str | None:
        return (
            _checked_function(value) if value and (":" in value or info.field_name == "function") else value
        )

    @model_validator(mode="before")
    @classmethod
    def _fields_of_steps(cls, data: Any) -> Any:
        """Fields that are given beside the list must say the same: so they do where it was read before."""
        if not isinstance(data, dict) or not isinstance(data.get("steps"), list) or not data["steps"]:
            return data
        try:
            fields = fields_of(data["steps"])
        except StepError as error:
            raise ValueError(f"steps[{error.step}]: {error}") from None
        for name, value in fields.items():
            if name in data and not _same(name, data[name], value):
                raise ValueError(f"{name} is {data[name]!r} beside steps, where it is {value!r}: keep one")
        return {**data, **fields}

    @model_validator(mode="after")
    def _function_was_asked(self) -> Self:
        if self.function is not None and not self.steps:
            raise ValueError(f"{self.function} has not been asked: load_config does that")
        return self


def _same(name: str, one: object, other: object) -> bool:
    models: dict[str, type[Cost | Limits]] = {"cost": Cost, "limits": Limits}
    model = models.get(name)
    return one == other if model is None else model.model_validate(one) == model.model_validate(other)


class Mesh(Model):
    """The trainer's axes. A default: the clients' own mesh wins."""

    dp: int = Field(default=1, gt=0, description="Data parallel: other sequences.")
    cp: int = Field(default=1, gt=0, description="Context parallel: slices of the same sequences.")
    tp: int = Field(default=1, gt=0, description="Tensor parallel: the same tokens.")
    pp: int = Field(default=1, gt=0, description="Pipeline parallel: the same microbatches.")
