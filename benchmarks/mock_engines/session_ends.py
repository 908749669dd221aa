"""Reports the ends of drafting sessions, for an engine that asks for no drafts."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kv_transfer.draft_channel import DraftClient
from kv_transfer.messages import KeptPrompt
from target_service.drafting.exchange import DraftExchange
from target_service.drafting.session import TargetSession

logger = logging.getLogger(__name__)


class SessionEnds:
    """Tells each drafter which sessions have ended, in the background. connect: as in DraftExchange.

    An end that a drafter did not get is sent again with the next one.
    """

    def __init__(self, connect: Callable[[str], DraftClient]) -> None:
        self._exchange = DraftExchange(connect, vocab_size=0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session-ends")  # an exchange waits for its drafter
        self._closed = False

    def ended(self, prompt: KeptPrompt) -> None:
        """The answer to this prompt has ended. A prompt without a session has none to end."""
        if prompt.session is not None and not self._closed:
            self._thread.submit(self._report, TargetSession(prompt.session.address, prompt.session.id))

    def _report(self, session: TargetSession) -> None:
        try:
            self._exchange.close(session)
            self._exchange.flush()
        except Exception:
            logger.exception("the end of session %s was not reported", session.id)

    def close(self) -> None:
        """Report what has ended, then disconnect; idempotent."""
        self._closed = True
        self._thread.shutdown()
        self._exchange.shutdown()
