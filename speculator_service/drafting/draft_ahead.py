"""Drafting ahead: while the target verifies, predict its answer (branches) and draft a continuation of each branch.

A branch is a hit if it equals the target's whole answer. This depends on the answer and on the branches only, never on
the drafts made for a branch. So each draft is still a sample of its q given the true answer, and verification by
rejection sampling (arXiv 2211.17192, theorem 1) stays exact.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kv_transfer.messages import Int32Array
from skim_common.errors import SkimError
from speculator_service.engine import Drafted, SpeculatorEngine, supports_branches

ALTERNATIVES = 4
"""b: the number of alternative tokens considered at each position where the target may reject the draft."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftParams:
    """How to draft for a row: at most `count` tokens, from the drafter's top `top_m` at `temperature` (0: greedy)."""

    count: int
    temperature: float
    top_m: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A predicted extension of the answer: some accepted drafts and one more token. probability: of this extension."""

    tokens: tuple[int, ...]
    probability: float


def predict_chain(drafts: Int32Array, bonus: Drafted) -> list[Branch]:
    """Predict that the target accepts all drafts [K] and that its bonus token is the drafter's. At most one branch."""
    return [Branch((*drafts.tolist(), int(token)), 1.0) for token in bonus.tokens[:1]]


def predict_branches(sent: Drafted, bonus: Drafted, acceptance: float) -> list[Branch]:
    """Predict every number of accepted drafts, each with the drafter's most probable next tokens.

    With acceptance rate a, exactly the first j < K of the K drafts are accepted with probability a^j (1 - a), and all
    of them with a^K. The next token is one of the drafter's alternatives at that position, but not the rejected draft.
    Returns the most probable branch first.
    """
    drafts = sent.tokens.tolist()
    branches = []
    for j in range(len(drafts) + 1):
        all_accepted = j == len(drafts)
        ids, probs = _candidates(bonus, 0) if all_accepted else _candidates(sent, j)
        rejected = None if all_accepted else drafts[j]
        rest = 1.0 - sum(p for t, p in zip(ids, probs, strict=True) if t == rejected)
        reached = acceptance**j * (1.0 if all_accepted else 1.0 - acceptance)
        branches += [
            Branch((*drafts[:j], t), reached * min(1.0, p / max(rest, 1e-6)))
            for t, p in zip(ids, probs, strict=True)
            if t != rejected
        ]
    return sorted(branches, key=lambda b: -b.probability)


def _candidates(drafted: Drafted, j: int) -> tuple[list[int], list[float]]:
    """The alternatives at the position of draft j, with their probabilities; empty if the engine returned none."""
    width = drafted.alternative_ids.size // max(1, drafted.tokens.size)
    row = slice(j * width, (j + 1) * width)
    return drafted.alternative_ids[row].tolist(), drafted.alternative_probs[row].tolist()


ChooseBranches = Callable[[Drafted], list[Branch]]
"""Maps the bonus token after all drafts (one token and its alternatives) to the branches worth drafting."""


class AheadDrafting:
    """Drafts ahead for one session: computes the bonus token after the sent drafts, then continues each chosen branch.

    branches: the branches being drafted; empty until they are chosen.
    """

    def __init__(
        self,
        engine: SpeculatorEngine,
        session: str,
        answer: Int32Array,
        sent: Drafted,
        params: DraftParams,
        choose: ChooseBranches,
    ) -> None:
        """answer: int32 [A], the answer before the drafts `sent`. Starts at once, as a task of the running loop."""
        self.branches: list[Branch] = []
        self._engine = engine
        self._session = session
        self._answer = answer
        self._params = params
        self._task = asyncio.create_task(self._run(sent, choose))

    async def take(self, answer: Int32Array, params: DraftParams) -> Drafted | None:
        """The drafts that continue exactly `answer`; waits until they are ready. For any other answer: stop, None.

        Returns at most `params.count` drafts, and no more than were requested at the start.
        """
        same = (params.temperature, params.top_m) == (self._params.temperature, self._params.top_m)
        index = self._find(answer) if same and params.count else None
        if index is None:
            await self.stop()
            return None
        await asyncio.wait({self._task})
        drafted = None if self._task.cancelled() else self._task.result()
        return _first(drafted[index], params.count) if drafted and drafted[index].tokens.size else None

    @property
    def busy(self) -> bool:
        """Whether the engine is still drafting."""
        return not self._task.done()

    async def stop(self) -> None:
        """Cancel the task and wait until the engine no longer uses the session."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def _find(self, answer: Int32Array) -> int | None:
        size = self._answer.size
        if not np.array_equal(answer[:size], self._answer):
            return None
        added = tuple(answer[size:].tolist())
        return next((i for i, branch in enumerate(self.branches) if branch.tokens == added), None)

    async def _run(self, sent: Drafted, choose: ChooseBranches) -> list[Drafted]:
        """One Drafted per branch; none if the engine failed, because the next ordinary call will report the error."""
        try:
            verified = np.concatenate([self._answer, sent.tokens])
            bonus = await self._next_token(verified)
            self.branches = choose(bonus)
            answers = [np.concatenate([self._answer, np.array(b.tokens, np.int32)]) for b in self.branches]
            return await self._draft(answers)
        except SkimError as error:
            _log.debug("no drafts ahead for session %s: %s", self._session, error)
        except Exception:
            _log.exception("drafting ahead failed for session %s", self._session)
        return []

    async def _next_token(self, answer: Int32Array) -> Drafted:
        if supports_branches(self._engine):
            return await self._engine.draft(self._session, answer, 1, alternatives=ALTERNATIVES)
        return await self._engine.draft(self._session, answer, 1)

    async def _draft(self, answers: list[Int32Array]) -> list[Drafted]:
        params, engine = self._params, self._engine
        if not answers:
            return []
        if supports_branches(engine):
            return await engine.draft_many(
                self._session,
                answers,
                params.count,
                temperature=params.temperature,
                top_m=params.top_m,
                alternatives=ALTERNATIVES,
            )
        # Such an engine drafts a chain: there is at most one answer.
        return [
            await engine.draft(self._session, a, params.count, temperature=params.temperature, top_m=params.top_m)
            for a in answers
        ]


def _first(drafted: Drafted, count: int) -> Drafted:
    """The first `count` drafts with their q and their alternatives."""
    size = drafted.tokens.size
    m, b = drafted.q_ids.size // size, drafted.alternative_ids.size // size
    return Drafted(
        drafted.tokens[:count],
        drafted.q_ids[: count * m],
        drafted.q_probs[: count * m],
        drafted.alternative_ids[: count * b],
        drafted.alternative_probs[: count * b],
    )
