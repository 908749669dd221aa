"""The requests of a target worker that may get drafts: their draft counts, their sources of drafts, and statistics."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kv_transfer.messages import Int32Array, KeptPrompt
from target_service.drafting.draft_count import AcceptanceAverage, DraftCount
from target_service.drafting.exchange import ProposalRequest
from target_service.drafting.settings import DraftSettings
from target_service.drafting.target_session import Proposal, TargetSession, one_hot


@dataclass(slots=True)
class DraftedRequest:
    """temperature, top_m: as in DraftRow, 0 for one-hot drafts. session: None if no drafter serves this request."""

    count: DraftCount
    look_ahead: Int32Array
    session: TargetSession | None
    temperature: float
    top_m: int

    def free_drafts(self, answer: Int32Array) -> Int32Array:
        """The look-ahead tokens that continue `answer`; none after the answer has diverged from them."""
        ahead = self.look_ahead
        if ahead.size <= answer.size or not np.array_equal(ahead[: answer.size], answer):
            self.look_ahead = ahead = ahead[:0]
        return ahead[answer.size :]


class DraftedRequests:
    """most: the engine's K. The n answers of a request share one session id; the first answer gets the session."""

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
        """Add a request. prompt: returns its kept prompt, in case the drafter loses the session."""
        session = None
        if settings.session is not None and (key := (settings.session.address, settings.session.id)) not in self._owned:
            self._owned.add(key)
            session = TargetSession(settings.session, prompt, settings.draft_ahead, settings.cache_salt)
        # A new request starts with the average acceptance of all requests.
        count = DraftCount(min(settings.max_drafts, self._most), settings.adaptive, replace(self._acceptance))
        self._requests[request_id] = DraftedRequest(count, settings.look_ahead, session, temperature, top_m)

    def finish(self, request_id: str) -> TargetSession | None:
        """Remove a request. Returns its session, which ends too."""
        request = self._requests.pop(request_id, None)
        if request is None or request.session is None:
            return None
        self._owned.discard(request.session.origin)
        return request.session

    def observe(self, request_id: str, drafts: int, accepted: int) -> None:
        """Record one verification of `drafts` > 0 drafts of this request; the first `accepted` were accepted."""
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
    ) -> tuple[Proposal | None, ProposalRequest | None]:
        """Decide where this step's drafts come from: look-ahead tokens (Proposal), the drafter, or nowhere.

        room: drafts that may follow `answer`. cost: cost of one draft in plain steps.
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
        return None, ProposalRequest(request.session, answer, drafts, request.temperature, request.top_m)

    def stats(self) -> dict[str, Any]:
        """Counts since the start.

        rounds: verifications. look_ahead: look-ahead tokens used as drafts. no_session: steps of requests that may have
        drafts but have no session. chosen: how often each K was chosen. acceptance: moving average over all requests.
        """
        return {
            **{name: self._counters[name] for name in ("rounds", "drafts", "accepted", "look_ahead", "no_session")},
            "drafts_per_position": list(self._drafts_at),
            "accepted_per_position": list(self._accepted_at),
            "acceptance": self._acceptance.rate,
            "chosen": {k: self._chosen[k] for k in range(self._most + 1)},
        }
