"""The engines of a pair as the pools of a router's dispatcher."""

from collections.abc import AsyncGenerator
from dataclasses import replace

from kv_transfer.messages import GenerateOutput, GenerateRequest, Selection, SelectRequest
from router.pools.interface import Admitted, unwatched
from skim.engines import PairEngines
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.models.info import ModelInfo


class SelectionFailedError(Exception):
    """A selection failed. It is no SkimError: the dispatcher would run the prompt dense. error: why."""

    def __init__(self, error: SkimError) -> None:
        super().__init__(str(error))
        self.error = error


class InProcessPools:
    """Implements `router.pools.interface.Pools`. drafts: whether a selection leaves a drafting session."""

    untrusted = False

    def __init__(self, engines: PairEngines, *, drafts: bool) -> None:
        """Raises SkimError without a target."""
        self._engines, self._drafts = engines, drafts
        self.target: ModelInfo = engines.target.info
        self.speculator: ModelInfo | None = engines.speculator.info if engines.has_speculator else None
        self.end_session = engines.end_session

    def replicas(self, pool: str) -> float:
        """See `Pools`."""
        return 1.0

    async def select(self, request: SelectRequest, admitted: Admitted = unwatched, answers: bool = True) -> Selection:
        """Raises InvalidRequestError, and SelectionFailedError for every other SkimError."""
        admitted()
        try:
            return await self._engines.select(request if self._drafts else replace(request, decode=None))
        except InvalidRequestError:
            raise
        except SkimError as error:
            raise SelectionFailedError(error) from None

    def generate(
        self, request: GenerateRequest, admitted: Admitted = unwatched
    ) -> AsyncGenerator[GenerateOutput, None]:
        """See `Pools`."""
        admitted()
        return self._engines.target.generate(request)


class Unmetered:
    """A meter that records nothing."""

    def record(self, name: str, value: float, **tags: str) -> None: ...
