"""Selections that the router makes itself, by shared words, when the speculator pool fails or is late."""

from dataclasses import replace
from functools import cached_property

from kv_transfer.messages import Selection, SelectRequest
from router.pools import Pools
from speculator_service.lexical_engine import LexicalSpeculator
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
