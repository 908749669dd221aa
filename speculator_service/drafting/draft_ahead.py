"""Drafting on while the target verifies: guesses of what it will answer, and drafts ready for each.

A hit must match the target's whole answer, and whether it counts as one depends on that answer and on the guesses
alone, never on the drafts that were made for it. So a draft's q is still what it was sampled from, given the true
answer, and verification by rejection sampling (arXiv 2211.17192, theorem 1) stays exact.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kv_transfer.errors import SkimError
from kv_transfer.messages import Int32Array
from speculator_service.engine import Drafted, SpeculatorEngine, supports_branches

LIKELY = 4
"""Tokens considered in each place that the target may answer otherwise than drafted, b."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a row asks for: at most `count` drafts, from the drafter's top `top_m` at `temperature` (0: greedy)."""

    count: int
    temperature: float
    top_m: int


@dataclass(frozen=True, slots=True)
class Guess:
    """What the target may add to the answer next: accepted drafts and one token more. probability: of just that."""

    tokens: tuple[int, ...]
    probability: float


def guess_chain(drafts: Int32Array, bonus: Drafted) -> list[Guess]:
    """All drafts [K] are accepted and the bonus token is the drafter's own."""
    return [Guess((*drafts.tolist(), int(token)), 1.0) for token in bonus.tokens[:1]]


def guess_branches(sent: Drafted, bonus: Drafted, acceptance: float) -> list[Guess]:
    """Accepted length times the likeliest next token there; the likeliest guess first.

    With acceptance a, the first j < K of the K drafts are accepted with probability a^j (1 - a), all of them with
    a^K. The token after them is one of the drafter's likeliest, but never the rejected draft itself.
    """
    drafts = sent.tokens.tolist()
    guesses = []
    for j in range(len(drafts) + 1):
        all_accepted = j == len(drafts)
        ids, probs = _candidates(bonus, 0) if all_accepted else _candidates(sent, j)
        rejected = None if all_accepted else drafts[j]
        rest = 1.0 - sum(p for t, p in zip(ids, probs, strict=True) if t == rejected)
        reached = acceptance**j * (1.0 if all_accepted else 1.0 - acceptance)
        guesses += [
            Guess((*drafts[:j], t), reached * min(1.0, p / max(rest, 1e-6)))
            for t, p in zip(ids, probs, strict=True)
            if t != rejected
        ]
    return sorted(guesses, key=lambda g: -g.probability)


def _candidates(drafted: Drafted, j: int) -> tuple[list[int], list[float]]:
    """The likeliest tokens in the place of draft j, where the engine told them."""
    width = drafted.alternative_ids.size // max(1, drafted.tokens.size)
    row = slice(j * width, (j + 1) * width)
    return drafted.alternative_ids[row].tolist(), drafted.alternative_probs[row].tolist()


Choose = Callable[[Drafted], list[Guess]]
"""From the drafter's own next token after all drafts (one token and its alternatives) to the guesses worth drafting."""


class Ahead:
    """The work ahead of one session: reads the drafts that were sent, guesses, and drafts on from each guess.

    guesses: those being drafted for; empty until they are chosen.
    """

    def __init__(
        self, engine: SpeculatorEngine, session: str, answer: Int32Array, sent: Drafted, ask: Ask, choose: Choose
    ) -> None:
        """answer: int32 [A], what `sent` was drafted after. Starts at once, as a task of the running loop."""
        self.guesses: list[Guess] = []
        self._engine = engine
        self._session = session
        self._answer = answer
        self._ask = ask
        self._task = asyncio.create_task(self._run(sent, choose))

    async def take(self, answer: Int32Array, ask: Ask) -> Drafted | None:
        """The drafts made for exactly `answer`, waiting for them if they are under way; else stops all work ahead.

        At most `ask.count` of them, fewer if fewer were asked for when they were begun.
        """
        same = (ask.temperature, ask.top_m) == (self._ask.temperature, self._ask.top_m)
        index = self._find(answer) if same and ask.count else None
        if index is None:
            await self.stop()
            return None
        await asyncio.wait({self._task})
        drafted = None if self._task.cancelled() else self._task.result()
        return _first(drafted[index], ask.count) if drafted and drafted[index].tokens.size else None

    @property
    def busy(self) -> bool:
        """Whether the engine is still at it."""
        return not self._task.done()

    async def stop(self) -> None:
        """Cancel what is under way and wait until the engine has let go of the session."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def _find(self, answer: Int32Array) -> int | None:
        size = self._answer.size
        if not np.array_equal(answer[:size], self._answer):
            return None
        added = tuple(answer[size:].tolist())
        return next((i for i, guess in enumerate(self.guesses) if guess.tokens == added), None)

    async def _run(self, sent: Drafted, choose: Choose) -> list[Drafted]:
        """One Drafted per guess; none if the engine failed, which the next real call will tell."""
        try:
            verified = np.concatenate([self._answer, sent.tokens])
            bonus = await self._next_token(verified)
            self.guesses = choose(bonus)
            answers = [np.concatenate([self._answer, np.array(g.tokens, np.int32)]) for g in self.guesses]
            return await self._draft(answers)
        except SkimError as error:
            _log.debug("no drafts ahead for session %s: %s", self._session, error)
        except Exception:
            _log.exception("drafting ahead failed for session %s", self._session)
        return []

    async def _next_token(self, answer: Int32Array) -> Drafted:
        if supports_branches(self._engine):
            return await self._engine.draft(self._session, answer, 1, alternatives=LIKELY)
        return await self._engine.draft(self._session, answer, 1)

    async def _draft(self, answers: list[Int32Array]) -> list[Drafted]:
        ask, engine = self._ask, self._engine
        if not answers:
            return []
        if supports_branches(engine):
            return await engine.draft_many(
                self._session,
                answers,
                ask.count,
                temperature=ask.temperature,
                top_m=ask.top_m,
                alternatives=LIKELY,
            )
        # A guess is a chain here: one answer.
        return [
            await engine.draft(self._session, a, ask.count, temperature=ask.temperature, top_m=ask.top_m)
            for a in answers
        ]


def _first(drafted: Drafted, count: int) -> Drafted:
    """The first `count` drafts and what belongs to them."""
    size = drafted.tokens.size
    m, b = drafted.q_ids.size // size, drafted.alternative_ids.size // size
    return Drafted(
        drafted.tokens[:count],
        drafted.q_ids[: count * m],
        drafted.q_probs[: count * m],
        drafted.alternative_ids[: count * b],
        drafted.alternative_probs[: count * b],
    )
