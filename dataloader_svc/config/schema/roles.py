"""The processes of the service, and what they may take."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from dataloader_svc.config.schema.model import Bytes, Model

_LEAST_SHARED = 2**20


class Loader(Model):
    """Source loaders: processes that read, tokenize and decode."""

    count: int = Field(default=2, gt=0, description="Processes.")
    shadows: int = Field(
        default=0,
        ge=0,
        description="Loaders beside them that stand by, with sources opened and the next blocks read: where "
        "a loader dies, one takes its place at once. Each takes a loader's memory.",
    )
    memory: Bytes = Field(default=2**30, description="Encoded samples a loader holds at most.")
    threads: int = Field(default=2, gt=0, description="Decoding threads of each.")
    workers: int | None = Field(
        default=None,
        gt=0,
        description="Processes of each that decode what can hang or crash: videos and sound. Default: "
        "threads. None is started before there is work for it.",
    )
    decode_timeout: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds for one medium in a worker; what takes longer is skipped, its worker killed.",
    )
    worker_memory: Bytes = Field(
        default=2**30,
        ge=2**28,
        description="Memory of a worker, at most: the system refuses it more. One that keeps half of it "
        "after a medium is replaced.",
    )


class Constructor(Model):
    """Batch constructors: processes that build and send batches."""

    count: int = Field(default=1, gt=0, description="Processes.")
    memory: Bytes = Field(default=2**30, description="Finished batches a constructor holds at most.")
    shared_memory: Literal["auto", False] | Bytes = Field(
        default="auto",
        description="Part of `memory` for batches that trainers on the same host have mapped and that the "
        "constructor itself holds no longer, and for pages that it keeps warm. What goes beyond it is sent "
        "over gRPC. auto: a third. `off` (or `false`): batches are never mapped.",
    )
    idle_timeout: float = Field(
        default=600.0,  # as long as NCCL waits for a rank, after which the others are no more
        gt=0,
        allow_inf_nan=False,
        description="Seconds without a read of a rank after which nothing is kept for it; where no rank "
        "reads, nothing at all. It is made again when one does.",
    )

    @property
    def shared_bytes(self) -> int:
        """`shared_memory` in bytes; 0 = off, as it is by itself where `memory` is a few pages."""
        if self.shared_memory == "auto":
            return self.memory // 3 if self.memory >= _LEAST_SHARED else 0
        return int(self.shared_memory)

    @property
    def window_bytes(self) -> int:
        """Of `memory`, what is left for steps that are being built or wait to be read."""
        return self.memory - self.shared_bytes

    @model_validator(mode="after")
    def _leaves_a_window(self) -> Self:
        if self.window_bytes <= 0:
            raise ValueError(
                f"shared_memory ({self.shared_bytes} bytes) is a part of memory ({self.memory} bytes) and "
                "leaves nothing of it to build in: raise memory, or lower shared_memory"
            )
        return self


class Planner(Model):
    """The planner: one process, metadata only."""

    ahead: int = Field(default=4, gt=0, description="Steps planned ahead of the step asked for.")
    keep: Literal["all"] | int = Field(
        default=10_000,
        description="Steps that stay in the plan log before those that all ranks have committed "
        "(loader.commit), for explain, audit and readmission. all: none is ever removed.",
    )

    @field_validator("keep")
    @classmethod
    def _not_negative(cls, keep: Literal["all"] | int) -> Literal["all"] | int:
        if keep != "all" and keep < 0:
            raise ValueError(f"keep is a number of steps, 0 or more, or all; found {keep}")
        return keep
