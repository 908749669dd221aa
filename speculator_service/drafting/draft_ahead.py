"""Drafting ahead: while the target verifies, predict its answer and draft a continuation of it.

The prediction is that the target accepts all drafts and then chooses the drafter's own next token. It is a hit if it
equals the target's whole answer. This depends on the two answers only, never on the drafts made ahead. So each draft is
still a sample of its q given the true answer, and verification by rejection sampling (arXiv 2211.17192, theorem 1)
stays exact.
"""

import asyncio
import logging
from dataclasses import dataclass

import numpy as np

from kv_transfer.arrays import Int32Array
from skim_common.errors import SkimError
from speculator_service.engine import Drafted, SpeculatorEngine

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftParams:
    """How to draft for a row: at most `count` tokens, from the drafter's top `top_m` at `temperature` (0: greedy)."""

    count: int
    temperature: float
    top_m: int


class AheadDrafting:
    """Drafts ahead for one session: computes the next token after the sent drafts, then continues behind it."""

    def __init__(
        self, engine: SpeculatorEngine, session: str, answer: Int32Array, sent: Int32Array, params: DraftParams
    ) -> None:
        """answer: int32 [A], the answer before the drafts `sent`. Starts at once, as a task of the running loop."""
        self._engine = engine
        self._session = session
        self._params = params
        self._predicted: Int32Array | None = None
        self._task = asyncio.create_task(self._run(np.concatenate([answer, sent])))

    async def take(self, answer: Int32Array, params: DraftParams) -> Drafted | None:
        """The drafts that continue exactly `answer`; waits until they are ready. For any other answer: stop, None.

        Returns at most `params.count` drafts, and no more than were requested at the start.
        """
        same = (params.temperature, params.top_m) == (self._params.temperature, self._params.top_m)
        predicted = self._predicted is not None and np.array_equal(answer, self._predicted)
        if not (same and params.count and predicted):
            await self.stop()
            return None
        await asyncio.wait({self._task})
        drafted = None if self._task.cancelled() else self._task.result()
        return _first(drafted, params.count) if drafted and drafted.tokens.size else None

    @property
    def busy(self) -> bool:
        """Whether the engine is still drafting."""
        return not self._task.done()

    async def stop(self) -> None:
        """Cancel the task and wait until the engine no longer uses the session."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self, verified: Int32Array) -> Drafted | None:
        """None at the model's last position, or if the engine failed: the next ordinary call will report the error."""
        params = self._params
        try:
            own = await self._engine.draft(self._session, verified, 1)
            if not own.tokens.size:
                return None
            answer = self._predicted = np.concatenate([verified, own.tokens])
            return await self._engine.draft(
                self._session, answer, params.count, temperature=params.temperature, top_m=params.top_m
            )
        except SkimError as error:
            _log.debug("no drafts ahead for session %s: %s", self._session, error)
        except Exception:
            _log.exception("drafting ahead failed for session %s", self._session)
        return None


def _first(drafted: Drafted, count: int) -> Drafted:
    """The first `count` drafts with their q."""
    m = drafted.q_ids.size // drafted.tokens.size
    return Drafted(drafted.tokens[:count], drafted.q_ids[: count * m], drafted.q_probs[: count * m])
