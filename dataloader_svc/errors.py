"""Every error the service raises on purpose, and whose fault it is.

    DataloaderError
    ├── ConfigError          the YAML or the command line: fix it; retrying is useless        exit 2
    │   ├── ConfigProblems   several of them, found in one pass
    │   └── MixtureError     a change of the mixture that can't be made; nothing was changed
    ├── DataError            what the user's files hold
    │   ├── SourceError      a source can't be opened or indexed: path, format, field        exit 3
    │   │   └── Unreachable  the store is away or refuses us: says nothing of the data       exit 3
    │   └── BadSample        one row or one medium; quarantined, the job goes on
    ├── StateError           a state or a log that does not fit this job                     exit 4
    ├── StoreError           the state store is corrupt, locked or lost                      exit 5
    │   ├── StoreUnreachable it gives no answer; what was asked may have happened
    │   ├── StoreConflict    somebody else wrote that record: definite, nothing was written
    │   └── NotLeader        our lease is gone: stop acting
    ├── PeerError            another process is gone or slow. Retryable                      exit 6
    │   └── Overloaded       it has no memory for this now. Retryable after a while
    ├── RoleFailed           a role made a mistake, ours and no one else's: see its log      exit 1
    ├── AccessDenied         a caller shows no token, or a wrong one                       exit 6
    ├── VersionError         another process speaks another protocol version                 exit 6
    ├── EngineError          a role can't be kept running; with its last words          exit 6, or the role's
    ├── SessionSuperseded    ranks joined with another mesh or state: join again             exit 4
    └── MeshError            the trainer's mesh does not fit the batch: named at join        exit 2

The command line turns each into one line on stderr and its exit code. `rpc/status.py` is the only
file that turns them into gRPC codes and back. An `AssertionError` is always our own mistake.
Where an error passes through a layer that knows more of the place, the layer adds it with `add_note`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class DataloaderError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what a command ends with."""

    exit_code = 1


class ConfigError(DataloaderError):
    """One thing that is wrong in the configuration or on the command line."""

    exit_code = 2


class ConfigProblems(ConfigError):
    """All that is wrong in a configuration, found in one pass; `problems` holds a line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class MixtureError(ConfigError):
    """A change of the mixture that can't be made: the text says why. Nothing was changed."""


class MeshError(ConfigError):
    """The mesh of a trainer doesn't fit the configured batch or another rank's mesh."""


class DataError(DataloaderError):
    """What the user's files hold."""

    exit_code = 3


class SourceError(DataError):
    """A source that can't be opened, listed or indexed."""


class Unreachable(SourceError):
    """The place where data lies gives no answer, or refuses us: that says nothing of the data.

    So no sample is quarantined and no shard left out for it: others would be read in their place, and a
    resume would see other data.
    """


class Reason(StrEnum):
    """Why a sample is in the quarantine: stable codes, listed by `dataloader-svc quarantine`."""

    UNREADABLE_SHARD = "unreadable_shard"
    BAD_RECORD = "bad_record"  # a row or tar sample that can't be parsed
    MISSING_FIELD = "missing_field"  # null, absent, or a member that the tar sample lacks
    WRONG_TYPE = "wrong_type"  # a number where text is expected, ...
    EMPTY_TEXT = "empty_text"  # empty or only white space
    MARKER_MISMATCH = "marker_mismatch"  # more or fewer media than markers in the text
    NOT_MEDIA = "not_media"  # bytes that no decoder knows
    MISSING_FILE = "missing_file"
    NO_STREAM = "no_stream"  # a video file without a video stream
    TOO_MANY_PIXELS = "too_many_pixels"
    BAD_SHAPE = "bad_shape"  # zero sides, absurd aspect
    TRUNCATED = "truncated"
    DECODE_FAILED = "decode_failed"
    DECODE_TIMEOUT = "decode_timeout"  # not done within loader.decode_timeout
    DECODER_CRASHED = "decoder_crashed"  # it ended the process that ran it, and did so again
    TOO_LONG = "too_long"  # the source's `too_long: drop` rule
    BAD_MESSAGES = "bad_messages"  # chat messages that the template refuses
    MAP_FAILED = "map_failed"  # a user's function raised
    FILTERED = "filtered"  # left out on purpose, by a source's transforms: passed over, never quarantined


class BadSample(DataError):
    """One row, or one medium of it, that can't be used: it is quarantined with `reason` and `detail`."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


class StateError(DataloaderError):
    """A state or plan log that does not fit this job or its data."""

    exit_code = 4


class StoreError(DataloaderError):
    """The state store can't be opened, read or written."""

    exit_code = 5


class StoreUnreachable(StoreError):
    """The state store gives no answer: it is down, or somewhere else."""


class StoreConflict(StoreError):
    """The record exists with another content, or is not the next one. Nothing was written."""


class NotLeader(StoreError):
    """The fencing token is stale: another process leads now."""


class PeerError(DataloaderError):
    """Another process of the job is gone or too slow: the call may be made again."""

    exit_code = 6


class Overloaded(PeerError):
    """A role refuses work rather than exceed its memory: the call may be made again after a while."""


class RoleFailed(DataloaderError):
    """Another role met an exception that nobody raised on purpose. `rpc.status.RoleName.mistake` words it.

    Trying a few times more may help, trying for ever doesn't: the same input mostly meets the same mistake.
    """


class AccessDenied(DataloaderError):
    """A caller shows no token, or one that isn't the service's. Says nothing of the right one."""

    exit_code = 6


class VersionError(DataloaderError):
    """Another process speaks another version of the protocol; the text says which is older."""

    exit_code = 6


class EngineError(DataloaderError):
    """A role of the job can't be kept running. `exit_code` is the role's own where it names the fault."""

    exit_code = 6

    def __init__(self, text: str, exit_code: int = exit_code) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class SessionSuperseded(DataloaderError):
    """Ranks have joined with another mesh or state: the plans of this session are no longer made."""

    exit_code = 4

    @classmethod
    def of(cls, session: int, now: int) -> Self:
        """What readers of `session` are told when `now` is served instead; 0: none is."""
        if now:
            return cls(
                f"session {session} is over: ranks joined with another mesh or state, and session {now} is "
                "served now; join again, all ranks with the same mesh and state"
            )
        return cls(
            f"session {session} is over, and none has begun since: its ranks disagreed, or the service was "
            "started with another store or configuration; join again, all ranks with the same mesh and state"
        )
