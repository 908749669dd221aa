"""How an actor answers a failed request: an error message to the caller, and the traceback in its own log."""

import logging

from kv_transfer.codec import encode_error
from skim_common.errors import EngineUnavailableError, InvalidRequestError, SkimError

logger = logging.getLogger(__name__)


def reply_to_failure(error: Exception, pool: str) -> bytes:
    """Encode the error for the caller, who raises it again. The cause of an engine's failure stays in this log.

    The client may see the text of a SkimError, so the engines name no path, host or trace in it.
    """
    client_mistake = isinstance(error, InvalidRequestError)
    explained = isinstance(error, SkimError) and error.__cause__ is None
    if not (client_mistake or explained):
        logger.error("the %s engine failed on a request", pool, exc_info=error)
    if isinstance(error, SkimError):
        return encode_error(error)
    return encode_error(
        EngineUnavailableError(f"the {pool} engine failed on this request; its replica's log has the cause")
    )
