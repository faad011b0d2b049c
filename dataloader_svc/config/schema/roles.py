"""The processes of the service, and what they may take."""

from __future__ import annotations

from pydantic import Field

from dataloader_svc.config.schema.model import Bytes, Model


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


class Planner(Model):
    """The planner: one process, metadata only."""

    ahead: int = Field(default=4, gt=0, description="Steps planned ahead of the step asked for.")
