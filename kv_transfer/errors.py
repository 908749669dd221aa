"""Errors that a person reads: one sentence saying what was wrong, where, and what to do.

Every error that Skim raises on purpose is a `SkimError`. Its `kind` crosses the wire, so that the router can tell a
client's mistake (HTTP 400) from a pool that is down (503) without knowing the engine behind the pool.
"""

from typing import ClassVar


class SkimError(Exception):
    """Base of all errors meant for a person; the message is shown as it stands, without a trace."""

    kind: ClassVar[str] = "internal"


class InvalidRequestError(SkimError):
    """The request cannot be served as it was sent: a wrong option, too long a prompt (HTTP 400)."""

    kind: ClassVar[str] = "invalid_request"


class ModelError(SkimError):
    """A model folder is missing, unreadable, of an unsupported kind, or does not fit its partner model."""

    kind: ClassVar[str] = "model"


class EngineUnavailableError(SkimError):
    """An engine or a whole pool cannot answer now; the same request may work later (HTTP 503)."""

    kind: ClassVar[str] = "unavailable"


class SessionLostError(SkimError):
    """A drafting session is not on this speculator replica (any more): evicted, or the replica is a new one."""

    kind: ClassVar[str] = "session_lost"


class WireError(SkimError):
    """Bytes that are not a message this version can read: corrupt, truncated, too large, or of another version."""

    kind: ClassVar[str] = "wire"


def error_of_kind(kind: str, message: str) -> SkimError:
    """The error class whose `kind` is given (SkimError itself for an unknown kind), made with `message`."""
    return next((c for c in SkimError.__subclasses__() if c.kind == kind), SkimError)(message)
