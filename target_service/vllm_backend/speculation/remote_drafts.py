"""Remote drafting, independent of vLLM's model runner: follows the requests, asks the drafters, and counts.

Only rank 0 of a tensor-parallel group does this. The other ranks receive its proposals.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kv_transfer.arrays import Int32Array
from kv_transfer.draft_channel.client import connecting
from target_service.drafting.exchange import DraftExchange, ProposalRequest
from target_service.drafting.requests import AnswerRow, DraftedRequests
from target_service.drafting.session import Proposal
from target_service.drafting.settings import draft_settings

REPORT = "skim_draft_report"
"""Attribute of ModelRunnerOutput with the DraftReport of the step."""


@dataclass(frozen=True, slots=True)
class DraftReport:
    """From the worker to the scheduler, by request id.

    verified: drafts that the step verified, without masked places. wanted: places to reserve in the step after the
    next one.
    """

    verified: dict[str, int]
    wanted: dict[str, int]


CHANNEL = "skim_draft_channel"
"""Key in VllmConfig.additional_config: the argument of `connecting`."""


class Verified(NamedTuple):
    """One request after a step.

    drafts: number of drafts that the step verified. sampled: the accepted drafts and one token. answer: int32 [n], all
    tokens so far; empty for a request that `RemoteDrafts.follows` does not know.
    """

    id: str
    drafts: int
    sampled: list[int]
    answer: Int32Array


@dataclass
class _Step:
    """A decode step without prefill. began: time.perf_counter. waited: seconds of its exchange with the drafters."""

    began: float
    rows: int
    drafts: int
    waited: float = 0.0


class _Limits(NamedTuple):
    prompt_length: int
    params: Any


class RemoteDrafts:
    """The drafting state of one target worker. ahead: as in DraftedRequests."""

    def __init__(self, vllm_config: Any, *, ahead: bool = False) -> None:
        self._most = vllm_config.speculative_config.num_speculative_tokens
        self._max_model_len = vllm_config.model_config.max_model_len
        channel = (vllm_config.additional_config or {}).get(CHANNEL) or {}
        self._exchange = DraftExchange(connecting(channel), vllm_config.model_config.get_vocab_size())
        self._requests = DraftedRequests(self._most, ahead=ahead)
        self._limits: dict[str, _Limits] = {}
        self._step: _Step | None = None

    def begin_step(self, scheduled: Any) -> None:
        """Process the scheduler's output (vllm.v1.core.sched.output.SchedulerOutput) before the forward."""
        now = time.perf_counter()
        if self._step and not scheduled.finished_req_ids and not scheduled.scheduled_new_reqs:
            self._requests.counts.stepped(
                self._step.drafts, self._step.rows, now - self._step.began - self._step.waited
            )
        for id in scheduled.finished_req_ids:
            self._limits.pop(id, None)
            session = self._requests.finish(id)
            if session is not None:
                self._exchange.close(session)
        for new in scheduled.scheduled_new_reqs:
            self._begin_request(new)
        self._exchange.flush(self._requests.drafters() if scheduled.total_num_scheduled_tokens else None)
        rows = len(scheduled.num_scheduled_tokens)
        drafts = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        decodes = bool(rows) and rows + drafts == scheduled.total_num_scheduled_tokens
        self._step = _Step(time.perf_counter(), rows, drafts) if decodes else None

    def _begin_request(self, new: Any) -> None:
        params = new.sampling_params
        settings = draft_settings(params.extra_args) if params else None
        if settings is None:
            return
        if new.req_id in self._limits:
            # The V2 runner adds a preempted request again, perhaps without the last tokens of its answer.
            self._requests.roll_back(new.req_id, len(new.prefill_token_ids) - len(new.prompt_token_ids))
            return
        self._limits[new.req_id] = _Limits(len(new.prompt_token_ids), params)
        greedy = params.temperature < 1e-5
        # A grammar removes drafts after they were sampled, which would bias q. One-hot drafts stay exact.
        sampled = not greedy and params.structured_outputs is None
        self._requests.begin(
            new.req_id, settings, params.temperature if sampled else 0.0, settings.q_top if sampled else 0
        )

    def follows(self, request_id: str) -> bool:
        """Whether this running request may get drafts."""
        return request_id in self._limits

    def observe(self, rows: Iterable[Verified]) -> None:
        """Record the step that has just been sampled. rows: its requests that sampled a token."""
        for row in rows:
            if row.drafts:
                self._requests.observe(row.id, row.drafts, len(row.sampled) - 1)

    def propose(self, rows: Iterable[Verified], batch_size: int) -> dict[str, Proposal]:
        """Drafts by request id. Blocks until the drafters have answered, or until the deadline.

        batch_size: requests that sampled a token, with those that may get no drafts.
        """
        batch = [AnswerRow(row.id, row.answer, self._room(row)) for row in rows if self.follows(row.id)]
        free, questions = self._requests.plan(batch, batch_size)
        return free | self._asked(questions)

    def wanted(self, ids: Iterable[str]) -> dict[str, int]:
        """How many drafts each of these requests can use in the step after the next one."""
        return {id: request.wanted() for id in ids if (request := self._requests.get(id)) is not None}

    def _room(self, row: Verified) -> int:
        """Maximum number of drafts that can still become part of the answer; 0 after its end.

        The last token of an answer needs no draft. The scheduler ends an answer only after this step, and it must not
        wait for drafts that are never verified.
        """
        prompt_length, params = self._limits[row.id]
        size = int(row.answer.size)
        ends = {params.eos_token_id, *(params.stop_token_ids or ())}
        if size >= params.min_tokens and not ends.isdisjoint(row.sampled):
            return 0
        most = self._most if params.max_tokens is None else params.max_tokens - size - 1
        return min(most, self._max_model_len - prompt_length - size - 1)

    def _asked(self, questions: Mapping[str, ProposalRequest]) -> dict[str, Proposal]:
        if not questions:
            return {}
        began = time.perf_counter()
        by_session = self._exchange.ask(questions.values())
        seconds = time.perf_counter() - began
        if self._step:
            self._step.waited += seconds
        self._requests.counts.exchanged(max(q.drafts for q in questions.values()), seconds, drafted=bool(by_session))
        return {id: by_session[q.session] for id, q in questions.items() if q.session in by_session}

    def stats(self) -> dict[str, Any]:
        """Counts since the start, for metrics."""
        requests, exchange = self._requests.stats(), self._exchange.stats()
        exchange["fallbacks"]["no_session"] = requests.pop("no_session")
        exchange["fallbacks"]["no_draft"] += requests.pop("no_draft")
        return {**requests, **exchange}

    def shutdown(self) -> None:
        self._exchange.shutdown()
