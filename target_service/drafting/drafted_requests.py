"""All requests of a target worker that may be drafted for: who drafts next, how much, and how well it went."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kv_transfer.messages import Int32Array, KeptPrompt
from target_service.drafting.draft_count import AcceptanceAverage, DraftCount
from target_service.drafting.exchange import Question
from target_service.drafting.settings import DraftSettings
from target_service.drafting.target_session import Proposal, TargetSession, one_hot


@dataclass(slots=True)
class DraftedRequest:
    """temperature, top_m: as in DraftRow, 0 for certain drafts. session: None for one that nobody drafts for."""

    count: DraftCount
    look_ahead: Int32Array
    session: TargetSession | None
    temperature: float
    top_m: int

    def free_drafts(self, answer: Int32Array) -> Int32Array:
        """The look-ahead tokens that follow `answer`; none any more once the answer went another way."""
        ahead = self.look_ahead
        if ahead.size <= answer.size or not np.array_equal(ahead[: answer.size], answer):
            self.look_ahead = ahead = ahead[:0]
        return ahead[answer.size :]


class DraftedRequests:
    """most: the engine's K. Sampled answers of one request share its session id: the first to come has the session."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._requests: dict[str, DraftedRequest] = {}
        self._owned: set[tuple[str, str]] = set()
        self._acceptance = AcceptanceAverage()
        self._counters: Counter[str] = Counter()
        self._chosen: Counter[int] = Counter()
        self._drafts_at, self._accepted_at = [0] * most, [0] * most

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: str) -> DraftedRequest | None:
        return self._requests.get(request_id)

    def begin(
        self, request_id: str, settings: DraftSettings, prompt: Callable[[], KeptPrompt], temperature: float, top_m: int
    ) -> None:
        """Know a request from now on. prompt: its kept prompt, should the drafter lose it."""
        session = None
        if settings.session is not None and (key := (settings.session.address, settings.session.id)) not in self._owned:
            self._owned.add(key)
            session = TargetSession(settings.session, prompt, settings.draft_ahead)
        # A new request is taken to be like those before it.
        count = DraftCount(min(settings.max_drafts, self._most), settings.adaptive, replace(self._acceptance))
        self._requests[request_id] = DraftedRequest(count, settings.look_ahead, session, temperature, top_m)

    def finish(self, request_id: str) -> TargetSession | None:
        """Forget a request; the session that ends with it."""
        request = self._requests.pop(request_id, None)
        if request is None or request.session is None:
            return None
        self._owned.discard(request.session.origin)
        return request.session

    def observe(self, request_id: str, drafts: int, accepted: int) -> None:
        """One verification of `drafts` > 0 of this request, of which the first `accepted` held."""
        request = self._requests.get(request_id)
        if request is not None:
            request.count.observe(drafts, accepted)
        self._acceptance.observe(drafts, accepted)
        self._counters.update(rounds=1, drafts=drafts, accepted=accepted)
        for k in range(drafts):
            self._drafts_at[k] += 1
            self._accepted_at[k] += k < accepted

    def plan(
        self, request: DraftedRequest, answer: Int32Array, room: int, cost: float
    ) -> tuple[Proposal | None, Question | None]:
        """Drafts that are there already, or what to ask of the drafter, or neither.

        room: drafts that may follow `answer`. cost: of one draft, in plain steps.
        """
        most = min(request.count.most, room)
        if most < 1:
            return None, None
        free = request.free_drafts(answer)[:most]
        if free.size:
            self._counters["look_ahead"] += int(free.size)
            return one_hot(free), None
        if request.session is None:
            self._counters["no_session"] += 1
            return None, None
        drafts = min(request.count.next(cost), most)
        self._chosen[drafts] += 1
        if drafts == 0:
            return None, None
        return None, Question(request.session, answer, drafts, request.temperature, request.top_m)

    def stats(self) -> dict[str, Any]:
        """Counts since the start.

        rounds: verifications. look_ahead: drafts that were free. no_session: steps of requests that wanted drafts and
        have nobody to ask. chosen: how often each K was chosen. acceptance: the moving average over all requests.
        """
        return {
            **{name: self._counters[name] for name in ("rounds", "drafts", "accepted", "look_ahead", "no_session")},
            "drafts_per_position": list(self._drafts_at),
            "accepted_per_position": list(self._accepted_at),
            "acceptance": self._acceptance.rate,
            "chosen": {k: self._chosen[k] for k in range(self._most + 1)},
        }
