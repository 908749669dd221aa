"""Remote drafting, independent of vLLM's model runner, on rank 0 of a tensor-parallel group: follows the requests, asks
the drafters, and counts."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_transfer.draft_channel import connecting
from kv_transfer.drafts import GREEDY_BELOW, Drafted
from target_service.drafting.exchange import DraftExchange
from target_service.drafting.requests import AnswerEnd, DraftedRequests, Verified
from target_service.drafting.session import DraftSettings

REPORT = "skim_draft_report"
"""Attribute of ModelRunnerOutput with the DraftReport of the step."""


@dataclass(frozen=True, slots=True)
class DraftReport:
    """From the worker to the scheduler, by request id. verified: drafts that the step verified, without masked places.
    wanted: places to reserve in the step after the next one."""

    verified: dict[str, int]
    wanted: dict[str, int]


CHANNEL = "skim_draft_channel"
"""Key in VllmConfig.additional_config: the argument of `connecting`."""


@dataclass
class _Step:
    """A decode step without prefill. began: time.perf_counter. waited: seconds of its exchange with the drafters."""

    began: float
    rows: int
    drafts: int
    waited: float = 0.0


class RemoteDrafts:
    """The drafting state of one target worker. ahead: as in DraftedRequests."""

    def __init__(self, vllm_config: Any, *, ahead: bool = False) -> None:
        self._max_model_len = vllm_config.model_config.max_model_len
        channel = (vllm_config.additional_config or {}).get(CHANNEL) or {}
        self._exchange = DraftExchange(connecting(channel), vllm_config.model_config.get_vocab_size())
        self._requests = DraftedRequests(vllm_config.speculative_config.num_speculative_tokens, ahead=ahead)
        self._step: _Step | None = None

    def begin_step(self, scheduled: Any) -> None:
        """Process the scheduler's output (vllm.v1.core.sched.output.SchedulerOutput) before the forward."""
        step, now = self._step, time.perf_counter()
        if step and not scheduled.finished_req_ids and not scheduled.scheduled_new_reqs:
            self._requests.counts.stepped(step.drafts, step.rows, now - step.began - step.waited)
        for id in scheduled.finished_req_ids:
            if (session := self._requests.finish(id)) is not None:
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
        settings = DraftSettings.read(params)
        if settings is None:
            return
        if new.req_id in self._requests:
            # The V2 runner adds a preempted request again, perhaps without the last tokens of its answer.
            self._requests.roll_back(new.req_id, len(new.prefill_token_ids) - len(new.prompt_token_ids))
            return
        length = self._max_model_len - len(new.prompt_token_ids)
        ends = frozenset({params.eos_token_id, *(params.stop_token_ids or ())})
        end = AnswerEnd(min(length, params.max_tokens or length), ends, params.min_tokens)
        # A grammar removes drafts after they were sampled, which would bias q. One-hot drafts stay exact.
        sampled = params.temperature >= GREEDY_BELOW and params.structured_outputs is None
        temperature, top_m = (params.temperature, settings.q_top) if sampled else (0.0, 0)
        self._requests.begin(new.req_id, settings, end, temperature, top_m)

    def follows(self, request_id: str) -> bool:
        """Whether this running request may get drafts."""
        return request_id in self._requests

    def propose(self, rows: Sequence[Verified], batch_size: int) -> dict[str, Drafted]:
        """Record the step that has just been sampled, and get drafts by request id. Blocks until the drafters have
        answered, or until the deadline. rows: the requests that sampled a token. batch_size: with those that may get
        no drafts."""
        for row in rows:
            if row.drafts:
                self._requests.observe(row.id, row.drafts, len(row.sampled) - 1)
        free, questions = self._requests.plan(rows, batch_size)
        if not questions:
            return free
        began = time.perf_counter()
        by_session = self._exchange.ask(questions.values())
        seconds = time.perf_counter() - began
        if self._step:
            self._step.waited += seconds
        most = max(row.max_drafts for _, row in questions.values())
        self._requests.counts.exchanged(most, seconds, drafted=bool(by_session))
        return free | {id: by_session[session] for id, (session, _) in questions.items() if session in by_session}

    def wanted(self, ids: Iterable[str]) -> dict[str, int]:
        """How many drafts each of these requests can use in the step after the next one."""
        return {id: request.wanted() for id in ids if (request := self._requests.get(id)) is not None}

    def stats(self) -> dict[str, Any]:
        """Counts since the start, for metrics."""
        requests, exchange = self._requests.stats(), self._exchange.stats()
        exchange["fallbacks"]["no_session"] = requests.pop("no_session")
        exchange["fallbacks"]["no_draft"] += requests.pop("no_draft")
        return {**requests, **exchange}

    def shutdown(self) -> None:
        self._exchange.shutdown()
