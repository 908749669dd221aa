"""The engines of an `AsyncPair` as the pools of a router's dispatcher."""

from collections.abc import AsyncGenerator
from dataclasses import replace

from cluster.in_process.async_pair import AsyncPair
from kv_transfer.messages import GenerateOutput, GenerateRequest, Selection, SelectRequest, SessionHandle
from router.pools.interface import Admitted, unwatched
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

    def __init__(self, pair: AsyncPair, *, drafts: bool) -> None:
        """Raises SkimError for a pair without a target."""
        self._pair, self._drafts = pair, drafts
        self.target: ModelInfo = pair.target.info
        self.speculator: ModelInfo | None = pair.speculator.info if pair.has_speculator else None

    def replicas(self, pool: str) -> float:
        """See `Pools`."""
        return 1.0

    async def select(self, request: SelectRequest, admitted: Admitted = unwatched, answers: bool = True) -> Selection:
        """Raises InvalidRequestError, and SelectionFailedError for every other SkimError."""
        admitted()
        try:
            return await self._pair.select(request if self._drafts else replace(request, decode=None))
        except InvalidRequestError:
            raise
        except SkimError as error:
            raise SelectionFailedError(error) from None

    def generate(
        self, request: GenerateRequest, admitted: Admitted = unwatched
    ) -> AsyncGenerator[GenerateOutput, None]:
        """See `Pools`."""
        admitted()
        return self._pair.target.generate(request)

    async def end_session(self, session: SessionHandle) -> None:
        """See `Pools`."""
        await self._pair.end_session(session)


class Unmetered:
    """A meter that records nothing."""

    def record(self, name: str, value: float, **tags: str) -> None: ...
