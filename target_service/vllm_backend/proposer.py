"""Remote drafting in vLLM's V1 model runner: `speculative_config={"method": "custom_class", "model": PROPOSER, ...}`.

Each tensor-parallel rank has a proposer, because each rank verifies. Only rank 0 talks to the drafters, decides and
counts. It sends the distributions of the drafts to the other ranks. The scheduler takes the drafts from rank 0.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from vllm.distributed.parallel_state import get_tp_group

from kv_transfer.channel import Tls
from kv_transfer.channel_client import DraftClient
from kv_transfer.messages import Int32Array, KeptPrompt
from kv_transfer.position_map import KEPT_POSITIONS
from kv_transfer.positions import decode_positions
from target_service.drafting.drafted_requests import DraftedRequests, Row
from target_service.drafting.exchange import DraftExchange, ProposalRequest
from target_service.drafting.settings import draft_settings
from target_service.drafting.target_session import Proposal
from target_service.vllm_backend.draft_probs import DraftDistributions

PROPOSER = "target_service.vllm_backend.proposer.RemoteProposer"
CHANNEL = "skim_draft_channel"
"""Key in VllmConfig.additional_config: keyword arguments of DraftClient; `tls` is a mapping of Tls's fields."""


@dataclass
class _Step:
    """A decode step without prefill. began: time.perf_counter. waited: seconds of its exchange with the drafters."""

    began: float
    rows: int
    drafts: int
    waited: float = 0.0


class RemoteProposer:
    """The class that vLLM's runner creates for custom_class (vllm.v1.spec_decode.custom_class_proposer)."""

    def __init__(self, vllm_config: Any) -> None:
        self._most = vllm_config.speculative_config.num_speculative_tokens
        self._max_model_len = vllm_config.model_config.max_model_len
        channel = dict((vllm_config.additional_config or {}).get(CHANNEL) or {})
        if channel.get("tls"):
            channel["tls"] = Tls(**channel["tls"])
        vocab_size = vllm_config.model_config.get_vocab_size()
        self._exchange = DraftExchange(lambda address: DraftClient(address, **channel), vocab_size)
        self._requests = DraftedRequests(self._most)
        self._step: _Step | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's CPU runner calls this for every drafter. The drafting model runs in another process."""

    def attach(self, runner: Any) -> None:
        """Set the model runner before the first step. vLLM does not pass it to a proposer."""
        self._runner = runner
        self._group = get_tp_group()
        self._distributions = DraftDistributions(runner)

    @property
    def _leads(self) -> bool:
        return bool(self._group.rank_in_group == 0)

    def begin_step(self, scheduled: Any) -> None:
        """Process the scheduler's output (vllm.v1.core.sched.output.SchedulerOutput) before the forward."""
        self._distributions.scheduled = scheduled.scheduled_spec_decode_tokens
        if not self._leads:
            return
        now = time.perf_counter()
        if self._step and not scheduled.finished_req_ids and not scheduled.scheduled_new_reqs:
            self._requests.counts.stepped(
                self._step.drafts, self._step.rows, now - self._step.began - self._step.waited
            )
        for id in scheduled.finished_req_ids:
            session = self._requests.finish(id)
            if session is not None:
                self._exchange.close(session)
        for new in scheduled.scheduled_new_reqs:
            self._begin_request(new)
        if not scheduled.total_num_scheduled_tokens:
            self._exchange.flush()
        rows = len(scheduled.num_scheduled_tokens)
        drafts = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        decodes = bool(rows) and rows + drafts == scheduled.total_num_scheduled_tokens
        self._step = _Step(now, rows, drafts) if decodes else None

    def _begin_request(self, new: Any) -> None:
        params = new.sampling_params
        settings = draft_settings(params.extra_args) if params else None
        if settings is None:
            return

        def prompt() -> KeptPrompt:
            ids, encoded = np.asarray(new.prompt_token_ids, np.int32), params.extra_args.get(KEPT_POSITIONS)
            return KeptPrompt.dense(ids) if encoded is None else KeptPrompt(ids, *decode_positions(encoded))

        greedy = params.temperature < 1e-5
        # A grammar removes drafts after they were sampled, which would bias q. One-hot drafts stay exact.
        sampled = not greedy and params.structured_outputs is None
        self._requests.begin(
            new.req_id, settings, prompt, params.temperature if sampled else 0.0, settings.q_top if sampled else 0
        )

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Drafts for each row of the batch. sampled_token_ids: accepted drafts and one token; empty in prefill."""
        ids = self._runner.input_batch.req_ids
        proposals: dict[str, Proposal] = {}
        if self._leads:
            self._observe(ids, sampled_token_ids)
            rows = [row for row, sampled in enumerate(sampled_token_ids) if sampled]
            proposals = self._proposals(ids, rows, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        # All ranks decide this in the same way, from data that all of them have.
        if self._group.world_size > 1 and not self._runner.input_batch.all_greedy:
            proposals = self._group.broadcast_object(proposals if self._leads else None, src=0)
        self._distributions.proposals = proposals
        return [proposals[id].tokens.tolist() if id in proposals else [] for id in ids[: len(sampled_token_ids)]]

    def _observe(self, ids: list[str], sampled_token_ids: list[list[int]]) -> None:
        for id, sampled in zip(ids, sampled_token_ids, strict=False):
            drafts = len(self._distributions.scheduled.get(id, ()))
            if drafts and sampled:
                self._requests.observe(id, drafts, len(sampled) - 1)

    def _proposals(
        self, ids: list[str], rows: list[int], sampled: list[list[int]], num_tokens: Any, token_ids: Any
    ) -> dict[str, Proposal]:
        batch = []
        for row in rows:
            if self._requests.get(ids[row]) is None:
                continue
            end, start = int(num_tokens[row]), int(self._runner.input_batch.num_prompt_tokens[row])
            answer = token_ids[row, start:end].astype(np.int32)
            room = min(self._room(ids[row], answer, sampled[row]), self._max_model_len - end - 1)
            batch.append(Row(ids[row], answer, room))
        free, questions = self._requests.plan(batch, len(rows))
        return free | self._asked(questions)

    def _room(self, request_id: str, answer: Int32Array, sampled: list[int]) -> int:
        """Maximum number of drafts that can still become part of the answer; 0 after its end.

        The last token of an answer needs no draft. The scheduler ends an answer only after this step, and it must not
        wait for drafts that are never verified.
        """
        params = self._runner.requests[request_id].sampling_params
        ends = {params.eos_token_id, *(params.stop_token_ids or ())}
        if answer.size >= params.min_tokens and not ends.isdisjoint(sampled):
            return 0
        return self._most if params.max_tokens is None else params.max_tokens - int(answer.size) - 1

    def _asked(self, questions: dict[str, ProposalRequest]) -> dict[str, Proposal]:
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
        """Counts since the start, for metrics. Only rank 0 has them."""
        requests, exchange = self._requests.stats(), self._exchange.stats()
        exchange["fallbacks"]["no_session"] = requests.pop("no_session")
        return {**requests, **exchange}

    def shutdown(self) -> None:
        self._exchange.shutdown()
