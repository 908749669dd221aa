"""How an actor answers a request that failed: an error message on the wire, the trace in its own log."""

import logging

from kv_transfer.codec import encode_error
from kv_transfer.errors import EngineUnavailableError, SkimError

logger = logging.getLogger(__name__)


def reply_to_failure(error: Exception, pool: str) -> bytes:
    """The encoded error that the caller raises again. What was not raised on purpose keeps its inside here."""
    if isinstance(error, SkimError):
        return encode_error(error)
    logger.error("the %s engine failed on a request", pool, exc_info=error)
    return encode_error(
        EngineUnavailableError(f"the {pool} engine failed on this request; its replica's log has the cause")
    )
