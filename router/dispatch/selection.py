"""The selection of a prompt: the speculator pool's, judged by the guard, or the fallback's."""

import asyncio
import logging
import time
from dataclasses import replace
from functools import cached_property, partial

from actors.observability.pool_spans import note_selection
from kv_transfer.messages import Selection, SelectRequest, SessionHandle
from kv_transfer.options import AUTO
from router.admission.controller import Admission
from router.admission.ticket import Place
from router.decision.forecast import Forecaster
from router.decision.guard import Guard
from router.dispatch.prompt_run import Run
from router.dispatch.tracing import SELECT
from router.pools.availability import PoolDownError
from router.pools.interface import Pools
from router.pools.session_cleanup import SessionEnds
from skim_common.errors import DeadlineError, InvalidRequestError, SkimError
from speculator_service.lexical_engine import LexicalSpeculator
from speculator_service.limits import check_readable
from speculator_service.service import SpeculatorService


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


logger = logging.getLogger(__name__)

_OR_DENSE = 'shorten the prompt or send "speculative_prefill": false'


class Selecting:
    """timeout_s: after this time a selection is late. The others are the dispatcher's."""

    def __init__(
        self,
        timeout_s: float,
        admission: Admission,
        forecaster: Forecaster,
        guard: Guard,
        fallback: LexicalFallback,
        ends: SessionEnds,
    ) -> None:
        self._timeout_s, self._fallback, self._ends = timeout_s, fallback, ends
        self._admission, self._forecaster, self._guard = admission, forecaster, guard

    async def select(self, pools: Pools, run: Run, place: Place) -> Selection | None:
        """None if the prompt runs dense, see `outcome.reason`: the selection failed or was late, or, under `auto`, the
        speculator cannot read the prompt or its scores are flat. Raises SkimError."""
        options = run.advice.options
        try:
            if (speculator := pools.speculator) is not None:
                check_readable(len(run.prompt.token_ids), options, speculator, _OR_DENSE)
            selection = await self._ask(pools, run, place)
        except InvalidRequestError:
            if options.enabled != AUTO:
                raise
            run.outcome.reason = "speculator-limit"
            return None
        # Lexical scores in the place of the speculator's are not judged by its limit.
        if selection is None or run.outcome.options.selector != options.selector:
            return selection
        reason = self._guard.distrusts(run.advice, selection, run.spans.protected)
        if reason is None:
            return selection
        run.outcome.distrusted(reason)
        if selection.kept.session is not None:
            self._ends.end(pools, selection.kept.session)
        return None

    async def _ask(self, pools: Pools, run: Run, place: Place) -> Selection | None:
        """The speculator's selection, or the fallback's if that failed or was late; None without one."""
        prompt, context, outcome, request_id = run.prompt, run.context, run.outcome, run.request_id
        session = run.decode if run.decode.method == "remote" else None
        request = SelectRequest(
            run.wire_id,
            run.forecast.ids,
            run.advice.options.selection,
            run.spans.protected,
            cache_salt=prompt.cache_salt,
            decode=session,
            question=run.spans.question,
            affinity=run.affinity,
            rate_spans=run.spans.rate_spans,
            rates=run.spans.rates,
            timeout_ms=context.deadline.left_ms,
        )
        admitted = partial(context.admit, outcome)
        sent = time.perf_counter()
        try:
            with context.span.child(SELECT, "client") as span:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        selection = await pools.select(replace(request, trace=span.headers), admitted)
                except (asyncio.CancelledError, TimeoutError):
                    # The speculator may have selected already. Nobody takes the reply, which names the session.
                    if session is not None:
                        self._ends.end(pools, SessionHandle("", run.wire_id))
                    raise
                note_selection(span, run.wire_id, selection)
            computing_ms = sum(selection.timings.values()) - selection.timings.get("queue", 0.0)
            self._admission.selected(place, 1e3 * (time.perf_counter() - sent) - computing_ms)
        except (InvalidRequestError, DeadlineError):
            raise
        except (TimeoutError, SkimError) as error:
            late, down = isinstance(error, TimeoutError), isinstance(error, PoolDownError)
            outcome.reason = f"speculator-{'timeout' if late else 'down' if down else 'error'}"
            problem = f"no selection in {self._timeout_s:g} s" if late else error
            fallback = await self._fallback.select(request)
            if fallback is None:
                logger.warning("request %s runs dense: %s", request_id, problem)
                return None
            logger.warning("request %s is selected lexically: %s", request_id, problem)
            selection = fallback
            outcome.options = outcome.options.model_copy(update={"selector": "lexical"})
        outcome.selected(selection, 1e3 * (time.perf_counter() - sent))
        self._forecaster.selected(run.forecast, selection, outcome.options)
        return selection
