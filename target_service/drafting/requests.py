"""The requests of a target worker that may get drafts: their draft counts, their sources of drafts, and statistics."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.drafts import UNDRAFTED, Drafted, DraftRow
from target_service.drafting.counts import DraftCounts, PositionAcceptance
from target_service.drafting.session import DraftSettings, TargetSession

COUNTS = ("rounds", "drafts", "accepted", "look_ahead", "no_session", "no_draft")


class Verified(NamedTuple):
    """A request that may get drafts, after a step. drafts: those that the step verified. sampled: the accepted ones and
    one token. answer: int32 [n], all tokens so far.
    """

    id: str
    drafts: int
    sampled: list[int]
    answer: Int32Array


class AnswerEnd(NamedTuple):
    """Where an answer ends: after `length` tokens, or with a token of `tokens`, but not before `min_length`."""

    length: int
    tokens: frozenset[int] = frozenset()
    min_length: int = 0


@dataclass(slots=True)
class DraftedRequest:
    """most: the largest draft count. adaptive: False means that it is always used. session: None without a drafter.
    temperature, top_m: as in DraftRow, 0 for one-hot drafts. from_drafter: whether the last drafts came from there.
    chosen: by the last plan; None before the first choice.
    """

    most: int
    adaptive: bool
    end: AnswerEnd
    acceptance: PositionAcceptance
    look_ahead: Int32Array
    session: TargetSession | None
    temperature: float
    top_m: int
    from_drafter: bool = False
    chosen: int | None = None

    def wanted(self) -> int:
        """How many drafts this request can use in a later step, as far as is known now."""
        if self.look_ahead.size or (self.session is not None and self.chosen is None):
            return self.most
        return 0 if self.session is None else self.chosen or 0

    def room(self, row: Verified) -> int:
        """How many drafts can still become part of the answer, whose last token needs none; 0 after its end, which the
        scheduler sees only later."""
        size = int(row.answer.size)
        if size >= self.end.min_length and not self.end.tokens.isdisjoint(row.sampled):
            return 0
        return min(self.most, self.end.length - size - 1)

    def free_drafts(self, answer: Int32Array) -> Int32Array:
        """The look-ahead tokens that continue `answer`; none after the answer has diverged from them."""
        ahead = self.look_ahead
        if ahead.size <= answer.size or not np.array_equal(ahead[: answer.size], answer):
            self.look_ahead = ahead = ahead[:0]
        return ahead[answer.size :]


class DraftedRequests:
    """most: the engine's K. The n answers of a request share one session id; the first answer gets the session.

    ahead: the scheduler plans a step before the drafts for it are made (async scheduling). Then `plan` uses the count
    that it chose in the step before, because the scheduler knows only that one.
    """

    def __init__(self, most: int, *, ahead: bool = False) -> None:
        self._most, self._ahead = most, ahead
        self._requests: dict[str, DraftedRequest] = {}
        self._acceptance = PositionAcceptance(most)
        self.counts = DraftCounts(most)
        self._counters: Counter[str] = Counter()
        self._chosen: Counter[int] = Counter()
        self._drafts_at, self._accepted_at = [0] * most, [0] * most

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def get(self, request_id: str) -> DraftedRequest | None:
        return self._requests.get(request_id)

    def drafters(self) -> set[str]:
        """The addresses of the drafters of all requests."""
        return {session.address for session in self._sessions()}

    def _sessions(self) -> list[TargetSession]:
        return [request.session for request in self._requests.values() if request.session is not None]

    def begin(self, request_id: str, settings: DraftSettings, end: AnswerEnd, temperature: float, top_m: int) -> None:
        places = [(other.address, other.id) for other in self._sessions()]
        session = None
        if settings.session and tuple(settings.session) not in places:  # vLLM's messages make a list of it
            session = TargetSession(*settings.session)
        self._requests[request_id] = DraftedRequest(
            min(settings.max_drafts, self._most),
            settings.adaptive,
            end,
            PositionAcceptance(self._most, prior=self._acceptance),
            np.frombuffer(settings.look_ahead, "<i4"),
            session,
            temperature,
            top_m,
        )

    def roll_back(self, request_id: str, answered: int) -> None:
        """The answer of this request has become shorter: `answered` tokens."""
        request = self._requests.get(request_id)
        if request is not None and request.session is not None:
            request.session.roll_back(answered)

    def finish(self, request_id: str) -> TargetSession | None:
        """Remove a request; its session, which ends too."""
        return request.session if (request := self._requests.pop(request_id, None)) else None

    def observe(self, request_id: str, drafts: int, accepted: int) -> None:
        """Record a verification of `drafts` > 0 drafts, of which the first `accepted` were accepted."""
        request = self._requests.get(request_id)
        # Look-ahead tokens tell nothing about the drafter's next drafts.
        if request is not None and request.from_drafter:
            request.acceptance.observe(drafts, accepted)
            self._acceptance.observe(drafts, accepted)
        self._counters.update(rounds=1, drafts=drafts, accepted=accepted)
        for k in range(drafts):
            self._drafts_at[k] += 1
            self._accepted_at[k] += k < accepted

    def plan(
        self, batch: Iterable[Verified], rows: int
    ) -> tuple[dict[str, Drafted], dict[str, tuple[TargetSession, DraftRow]]]:
        """The next drafts, by request id: look-ahead tokens (Drafted), and what to ask the drafters for.

        rows: requests of the batch, with those that get no drafts.
        """
        free: dict[str, Drafted] = {}
        fixed: list[tuple[Verified, DraftedRequest, int]] = []
        adaptive: list[tuple[Verified, DraftedRequest, int]] = []
        for row in batch:
            request = self._requests.get(row.id)
            if request is None or (room := request.room(row)) < 1:
                continue
            request.from_drafter = False
            tokens = request.free_drafts(row.answer)[:room]
            if tokens.size:
                self._counters["look_ahead"] += int(tokens.size)
                free[row.id] = Drafted(tokens)
            elif request.session is None:
                self._counters["no_session"] += 1
            elif row.answer.size < UNDRAFTED:
                continue
            elif request.session.rests():
                request.chosen = 0
                self._counters["no_draft"] += 1
            else:
                (adaptive if request.adaptive else fixed).append((row, request, room))
        counts = [room for *_, room in fixed]
        if self.counts.rest():
            counts += [0] * len(adaptive)
        elif adaptive:
            expected = np.stack([request.acceptance.expected for _, request, _ in adaptive])
            counts += self.counts.choose(expected, np.array([room for *_, room in adaptive]), rows).tolist()
        asked: dict[str, tuple[TargetSession, DraftRow]] = {}
        for (row, request, room), count in zip([*fixed, *adaptive], counts, strict=True):
            before, request.chosen = request.chosen, count
            drafts = min(before, room) if self._ahead and before is not None else count
            self._chosen[drafts] += 1
            if request.session is not None and drafts:
                request.from_drafter = True
                question = request.session.ask(row.answer, drafts, request.temperature, request.top_m)
                asked[row.id] = request.session, question
        return free, asked

    def stats(self) -> dict[str, Any]:
        """rounds: verifications. look_ahead: look-ahead tokens used as drafts. no_session, no_draft: steps of requests
        without a session, or with one that rests. chosen: how often each K was. acceptance: of the first draft."""
        return {
            **{name: self._counters[name] for name in COUNTS},
            "drafts_per_position": list(self._drafts_at),
            "accepted_per_position": list(self._accepted_at),
            "acceptance": float(self._acceptance.rates[0]),
            "chosen": {k: self._chosen[k] for k in range(self._most + 1)},
            **self.counts.costs(),
        }
