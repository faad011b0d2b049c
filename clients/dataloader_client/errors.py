"""What a trainer can meet, and whether trying again helps.

    DataServiceError
    ├── ServiceUnavailableError   nobody answers, or it stopped answering: retried until `timeout`, then this
    ├── AccessDeniedError         no token or the wrong one; a certificate that one side does not accept
    ├── VersionMismatchError      client and service speak different protocols: upgrade the one named
    ├── MeshMismatchError         the mesh does not fit the batch, or another rank said otherwise
    ├── StateMismatchError        the state belongs to other data; the text names the field
    ├── MixtureError              a change of the mixture that can't be made; nothing was changed
    ├── SessionSupersededError    other ranks joined with another mesh or state: join again
    ├── LocalServiceError         the embedded service does not start, or ended; the text says why
    ├── DataStoppedError          the service gave up (too many bad samples, a missing source): see the text
    └── WireError                 a message that makes no sense: a bug, or not our service at all

All are definite: no batch was consumed. `read(step)` may always be repeated.
"""

from __future__ import annotations


class DataServiceError(Exception):
    """Base of all errors that the client raises on purpose."""


class ServiceUnavailableError(DataServiceError):
    """Nobody answers at the address, or the service went away and did not come back in time."""


class AccessDeniedError(DataServiceError):
    """The service does not accept this client's token, or one side the other's certificate."""


class VersionMismatchError(DataServiceError):
    """Client and service speak different versions of the protocol."""


class MeshMismatchError(DataServiceError):
    """The mesh does not fit the configured batch, or differs from what other ranks said."""


class StateMismatchError(DataServiceError):
    """The state to resume from belongs to other data or another configuration."""


class MixtureError(DataServiceError):
    """A change of the mixture that can't be made: the text says why. Nothing was changed."""


class SessionSupersededError(DataServiceError):
    """Other ranks joined with another mesh or state; this rank's plans are no longer served."""


class DataStoppedError(DataServiceError):
    """The service stopped delivering: the text says which source or role, and why."""


class LocalServiceError(DataServiceError):
    """The embedded service (`DataServiceLoader.local`) does not start, or has ended."""


class WireError(DataServiceError):
    """Bytes that are no frame."""
