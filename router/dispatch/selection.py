"""The selection of a prompt: the speculator pool's, judged by the guard, or the fallback's."""

import asyncio
import logging
import time
from dataclasses import replace
from functools import cached_property

from actors.observability.pool_spans import note_selection
from kv_transfer.limits.speculator import check_readable
from kv_transfer.messages import Selection, SelectRequest, SessionHandle
from kv_transfer.options import AUTO
from router.admission.controller import Admission
from router.admission.ticket import Ticket
from router.decision.forecast import Forecaster
from router.decision.guard import Guard
from router.dispatch.state import PromptState
from router.dispatch.tracing import SELECT
from router.pools.availability import PoolDownError
from router.pools.background_tasks import BackgroundTasks
from router.pools.interface import Pools
from skim_common.errors import DeadlineError, InvalidRequestError, SkimError
from speculator_service.lexical_engine import LexicalSpeculator
from speculator_service.service import SpeculatorService

logger = logging.getLogger(__name__)

_OR_DENSE = 'shorten the prompt or send "speculative_prefill": false'


class LexicalFallback:
    """Selects with `selector: lexical`; the other options are those of the request. It keeps no drafting session."""

    def __init__(self, pools: Pools, *, enabled: bool) -> None:
        """pools: connected before the first selection. enabled: without it, there is no selection."""
        self._pools, self._enabled = pools, enabled

    @cached_property
    def _service(self) -> SpeculatorService:
        return SpeculatorService(LexicalSpeculator(self._pools.target))

    async def select(self, request: SelectRequest) -> Selection | None:
        """None if the prompt must run dense. Raises InvalidRequestError for an invalid request."""
        if not self._enabled:
            return None
        options = request.options.model_copy(update={"selector": "lexical"})
        return await self._service.select(replace(request, options=options, decode=None))


class SelectionClient:
    """timeout_s: after this time a selection is late. The others are the dispatcher's."""

    def __init__(
        self,
        timeout_s: float,
        admission: Admission,
        forecaster: Forecaster,
        guard: Guard,
        fallback: LexicalFallback,
        background: BackgroundTasks,
    ) -> None:
        self._timeout_s, self._fallback, self._background = timeout_s, fallback, background
        self._admission, self._forecaster, self._guard = admission, forecaster, guard

    async def select(self, pools: Pools, state: PromptState, ticket: Ticket) -> Selection | None:
        """None if the prompt runs dense, see `state.reason`: the selection failed or was late, or, under `auto`, the
        speculator cannot read the prompt or its scores are flat. Raises SkimError."""
        options = state.options
        try:
            request = self._request(state)
            if (speculator := pools.speculator) is not None:
                check_readable(request, speculator, _OR_DENSE)
            selection = await self._ask(pools, state, ticket, request)
        except InvalidRequestError:
            if options.enabled != AUTO:
                raise
            state.reason = "speculator-limit"
            return None
        # Lexical scores in the place of the speculator's are not judged by its limit.
        if selection is None or state.options.selector != options.selector:
            return selection
        reason = self._guard.distrusts(state.advice, selection, state.spans.protected, state.units)
        if reason is None:
            return selection
        state.distrusted(reason)
        if selection.kept.session is not None:
            self._background.start(pools.end_session(selection.kept.session))
        return None

    async def _ask(self, pools: Pools, state: PromptState, ticket: Ticket, request: SelectRequest) -> Selection | None:
        """The speculator's selection, or the fallback's if that failed or was late; None without one."""
        sent = time.perf_counter()
        try:
            with state.call.span.child(SELECT, "client") as span:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        selection = await pools.select(replace(request, trace=span.headers), state.admit)
                except (asyncio.CancelledError, TimeoutError):
                    # The speculator may have selected already. Nobody takes the reply, which names the session.
                    if request.decode is not None:
                        self._background.start(pools.end_session(SessionHandle("", state.wire_id)))
                    raise
                note_selection(span, state.wire_id, selection)
            computing_ms = sum(selection.timings.values()) - selection.timings.get("queue", 0.0)
            waited_ms = 1e3 * (time.perf_counter() - sent) - computing_ms
            self._admission.selected(ticket, waited_ms, drafts=selection.kept.session is not None)
        except (InvalidRequestError, DeadlineError):
            raise
        except (TimeoutError, SkimError) as error:
            late, down = isinstance(error, TimeoutError), isinstance(error, PoolDownError)
            state.reason = f"speculator-{'timeout' if late else 'down' if down else 'error'}"
            problem = f"no selection in {self._timeout_s:g} s" if late else error
            fallback = await self._fallback.select(request)
            if fallback is None:
                logger.warning("request %s runs dense: %s", state.request_id, problem)
                return None
            logger.warning("request %s is selected lexically: %s", state.request_id, problem)
            selection = fallback
            state.options = state.options.model_copy(update={"selector": "lexical"})
        state.selected(selection, 1e3 * (time.perf_counter() - sent))
        state.forecast = self._forecaster.selected(state.forecast, selection, state.options)
        return selection

    @staticmethod
    def _request(state: PromptState) -> SelectRequest:
        return SelectRequest(
            state.wire_id,
            state.forecast.ids,
            state.options.selection,
            state.spans.protected,
            cache_salt=state.prompt.cache_salt,
            decode=state.decode if state.uses_drafts else None,
            question=state.spans.question,
            affinity=state.affinity,
            rate_spans=state.spans.rate_spans,
            rates=state.spans.rates,
            timeout_ms=state.call.request.deadline.left_ms,
            units=state.units,
            indents=state.indents,
            links=state.links,
            frame=state.prompt.chat.frame if state.prompt.chat else None,
        )
