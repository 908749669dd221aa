"""Errors for people: each is one sentence that says what was wrong, where, and what to do.

Every error that Skim raises on purpose is a `SkimError`, whose `kind` crosses the wire: the router tells a client's
mistake (HTTP 400) from a pool that is down (503).
"""

from typing import ClassVar


class SkimError(Exception):
    """Base class of all errors meant for people. Users see the message unchanged and without a traceback."""

    kind: ClassVar[str] = "internal"


class InvalidRequestError(SkimError):
    """The request cannot be served as it is: for instance a wrong option, or a prompt that is too long (HTTP 400)."""

    kind: ClassVar[str] = "invalid_request"


class ModelError(SkimError):
    """A model folder is missing, unreadable or unsupported, or the model does not fit the other pool's model."""

    kind: ClassVar[str] = "model"


class EngineUnavailableError(SkimError):
    """An engine or a whole pool cannot answer now (HTTP 503). retry_after_s: when the same request may work, in whole
    seconds; it does not cross the wire."""

    kind: ClassVar[str] = "unavailable"
    retry_after_s: int = 1


class DeadlineError(SkimError):
    """The request's deadline is over. Its work was stopped in every pool (HTTP 504)."""

    kind: ClassVar[str] = "deadline"


class HandoverError(SkimError):
    """This target replica stops before the answer is complete; another replica must continue it."""

    kind: ClassVar[str] = "handover"


class SessionLostError(SkimError):
    """This speculator replica does not have the drafting session: it was evicted, or the replica is new."""

    kind: ClassVar[str] = "session_lost"


class WireError(SkimError):
    """The bytes are not a message that this version can read: corrupt, truncated, too large, or of another version."""

    kind: ClassVar[str] = "wire"


class MessageSizeError(SkimError):
    """A message between router and pools is larger than any may be. What was asked for must be less."""

    kind: ClassVar[str] = "message_size"


class WireVersionError(WireError):
    """The other side runs another release of Skim, as during an update."""


def error_of_kind(kind: str, message: str) -> SkimError:
    """An error of the class with this `kind`; a plain SkimError for an unknown kind."""
    kinds = (c for c in SkimError.__subclasses__() if "kind" in vars(c))  # the others never travel
    return next((c for c in kinds if c.kind == kind), SkimError)(message)


def one_line(error: BaseException) -> str:
    """An error's text on one line, at most 160 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
