"""The selection of a prompt by the speculator pool."""

import asyncio
import logging
import time
from dataclasses import replace

from actors.observability.pool_spans import note_selection
from kv_transfer.limits import check_readable
from kv_transfer.messages import Envelope, Selection, SelectRequest, SessionHandle
from kv_transfer.options import AUTO
from router.admission.controller import Admission
from router.admission.ticket import Ticket
from router.decision.forecaster import Forecaster
from router.dispatch.apart import apart
from router.dispatch.request import Prepared
from router.dispatch.state import Outcome
from router.dispatch.tracing import SELECT
from router.pools.availability import PoolDownError
from router.pools.background_tasks import BackgroundTasks
from router.pools.interface import Pools
from skim_common.errors import DeadlineError, InvalidRequestError, MessageSizeError, SkimError

logger = logging.getLogger(__name__)

_OR_DENSE = 'shorten the prompt or send "speculative_prefill": false'
OR_LEXICAL = 'shorten the text or send "speculative_prefill": {"selector": "lexical"}'


class SelectionClient:
    """timeout_s: after this time a selection is late. The others are the dispatcher's."""

    def __init__(
        self,
        timeout_s: float,
        admission: Admission,
        forecaster: Forecaster,
        background: BackgroundTasks,
    ) -> None:
        self._timeout_s, self._background = timeout_s, background
        self._admission, self._forecaster = admission, forecaster

    async def select(
        self, pools: Pools, prepared: Prepared, outcome: Outcome, ticket: Ticket
    ) -> tuple[Prepared, Selection | None]:
        """None if the prompt runs dense, see `outcome.reason`: the selection failed or was late, or, under `auto`, the
        speculator cannot read the prompt. Raises SkimError.

        Also the prompt as it was selected from: with units, and with the options that were used."""
        options, deadline = prepared.options, outcome.call.request.deadline
        try:
            if (speculator := pools.speculator) is not None:
                advice = _OR_DENSE if prepared.prompt.answers else OR_LEXICAL
                check_readable(_request(prepared, None), speculator, advice)
            prepared = await apart(prepared.prompt.rendered.length, prepared.with_units)
            request = _request(prepared, deadline.left_ms)
            return await self._ask(pools, prepared, outcome, ticket, request)
        except InvalidRequestError:
            if options.enabled != AUTO:
                raise
            outcome.reason = "speculator-limit"
            return prepared, None

    async def _ask(
        self, pools: Pools, prepared: Prepared, outcome: Outcome, ticket: Ticket, request: SelectRequest
    ) -> tuple[Prepared, Selection | None]:
        """The speculator's selection; None if that failed or was late."""
        sent = time.perf_counter()
        try:
            selection = await self._from_pool(pools, outcome, request, prepared.prompt.answers)
            computing_ms = sum(selection.timings.values()) - selection.timings.get("queue", 0.0)
            waited_ms = 1e3 * (time.perf_counter() - sent) - computing_ms
            self._admission.selected(ticket, waited_ms, drafts=selection.kept.session is not None)
        except (InvalidRequestError, DeadlineError):
            raise
        except MessageSizeError:
            message = f"the prompt's {prepared.size} tokens and their units are more than one selection can carry"
            raise InvalidRequestError(f"{message}; send the text in parts, each as a text of its own") from None
        except (TimeoutError, SkimError) as error:
            late, down = isinstance(error, TimeoutError), isinstance(error, PoolDownError)
            outcome.reason = f"speculator-{'timeout' if late else 'down' if down else 'error'}"
            problem = f"no selection in {self._timeout_s:g} s" if late else error
            effect = "runs dense" if prepared.prompt.answers else "fails"
            logger.warning("request %s %s: %s", prepared.request_id, effect, problem)
            return prepared, None
        outcome.selected(selection, prepared.options, 1e3 * (time.perf_counter() - sent))
        forecast = self._forecaster.selected(prepared.forecast, selection, prepared.options)
        return replace(prepared, forecast=forecast), selection

    async def _from_pool(self, pools: Pools, outcome: Outcome, request: SelectRequest, answers: bool) -> Selection:
        with outcome.call.span.child(SELECT, "client") as span:
            try:
                async with asyncio.timeout(self._timeout_s):
                    envelope = replace(request.envelope, trace=span.headers)
                    selection = await pools.select(replace(request, envelope=envelope), outcome.admit, answers)
            except (asyncio.CancelledError, TimeoutError):
                # The speculator may have selected already. Nobody takes the reply, which names the session.
                if request.decode is not None:
                    self._background.start(pools.end_session(SessionHandle("", request.request_id)))
                raise
            note_selection(span, request.request_id, selection)
            return selection


def _request(prepared: Prepared, timeout_ms: float | None) -> SelectRequest:
    prompt = prepared.prompt
    return SelectRequest(
        prepared.wire_id,
        prompt.rendered.token_ids,
        prepared.options.selection,
        prepared.layout,
        cache_salt=prompt.cache_salt,
        decode=prepared.decode if prepared.uses_drafts else None,
        envelope=Envelope(affinity=prepared.affinity, timeout_ms=timeout_ms),
    )
