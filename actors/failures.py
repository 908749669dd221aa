"""How an actor answers a failed request: an error message to the caller, and the traceback in its own log."""

import logging

from kv_transfer.codec import encode_error
from kv_transfer.errors import EngineUnavailableError, SkimError

logger = logging.getLogger(__name__)


def reply_to_failure(error: Exception, pool: str) -> bytes:
    """Encode the error for the caller, who raises it again. The details of an unexpected error stay in this log."""
    if isinstance(error, SkimError):
        return encode_error(error)
    logger.error("the %s engine failed on a request", pool, exc_info=error)
    return encode_error(
        EngineUnavailableError(f"the {pool} engine failed on this request; its replica's log has the cause")
    )
