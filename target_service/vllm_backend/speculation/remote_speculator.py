"""Remote drafting in vLLM's V2 model runner (vllm.v1.worker.gpu.model_runner), the default on GPUs.

Each rank verifies its own copy of the drafts. Only rank 0 of a tensor-parallel group talks to the drafters; it
broadcasts their proposals. With async scheduling the scheduler plans a step before the drafts for it exist. It reserves
as many places as the request asked for in the step before (`DraftReport`). Places without a draft are masked with -1,
which vLLM's rejection sampler never accepts. Steps without a request that may get drafts stay asynchronous.

Run on CPU in Triton's interpreter, eager, and on one H200 with CUDA graphs (docs/gpu.md).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu.attn_utils import get_attn_cg_support
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from kv_transfer.arrays import Int32Array
from kv_transfer.drafts import Drafted
from kv_transfer.position_map import Int64Array
from target_service.drafting.requests import Verified
from target_service.drafting.session import DraftSettings, q_entries
from target_service.vllm_backend.speculation.graphs import capture_decode_steps
from target_service.vllm_backend.speculation.remote_drafts import DraftReport, RemoteDrafts


@dataclass(slots=True)
class _Drafted:
    """A running request that may get drafts. temperature: that of the target. answer: tokens so far, on rank 0."""

    temperature: float
    answer: list[int] = field(default_factory=list)


@contextmanager
def remote_speculator() -> Iterator[None]:
    """A V2 model runner that is created in this context gets a RemoteSpeculator for custom_class."""
    import vllm.v1.worker.gpu.model_runner as model_runner

    stock = model_runner.init_speculator

    def init_speculator(vllm_config: Any, device: torch.device) -> Any:
        custom = vllm_config.speculative_config.method == "custom_class"
        return RemoteSpeculator(vllm_config, device) if custom else stock(vllm_config, device)

    model_runner.init_speculator = init_speculator
    try:
        yield
    finally:
        model_runner.init_speculator = stock


class RemoteSpeculator(BaseSpeculator):
    """The speculator of one rank. vLLM reads `draft_logits` when it verifies. drafts: works on rank 0 alone. report: of
    the step that has just been sampled."""

    supports_mm_inputs = False

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self._device = device
        self._most = vllm_config.speculative_config.num_speculative_tokens
        self.drafts = RemoteDrafts(vllm_config, ahead=vllm_config.scheduler_config.async_scheduling)
        vocabulary = vllm_config.model_config.get_vocab_size()
        self._logits = DraftLogits(vllm_config.scheduler_config.max_num_seqs, self._most, vocabulary, device)
        self.draft_logits = self._logits.table
        self._drafted: dict[str, _Drafted] = {}
        self._proposals: dict[str, Drafted] = {}
        self.report = DraftReport({}, {})
        self._proposed_for: list[str] = []

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """The runner has just created its own manager. There is no drafting model on this device."""
        support = get_attn_cg_support(self._runner.attn_groups, self._runner.vllm_config)
        support = support.narrow(*self._runner.model_state.get_additional_cg_support())
        any_lengths = support.min_cg_support == AttentionCGSupport.ALWAYS
        capture_decode_steps(self._runner.cudagraph_manager, any_lengths=any_lengths)

    def capture(self) -> None:
        """There is no drafting model on this device."""

    def attach(self, runner: Any) -> None:
        """Wrap the runner that created this speculator, before its first step."""
        self._group = get_tp_group()
        self._leads = self._group.rank_in_group == 0
        sample, self._runner = runner.sample, runner

        def sample_with_masked_drafts(hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
            masked = self._mask(input_batch)
            sampled = sample(hidden_states, input_batch, grammar_output)
            if masked is not None:
                # The model reads the buffer beyond the tokens of a step when a CUDA graph pads it.
                input_batch.input_ids.index_fill_(0, masked, 0)
            self._sampled = sampled[0].sampled_token_ids, sampled[1]
            return sampled

        runner.sample = sample_with_masked_drafts
        runner.take_draft_token_ids = self.take_draft_token_ids

    def begin_step(self, scheduled: Any) -> None:
        """Process the scheduler's output (vllm.v1.core.sched.output.SchedulerOutput) before the forward."""
        for id in scheduled.finished_req_ids:
            self._drafted.pop(id, None)
            self._proposals.pop(id, None)
        for new in scheduled.scheduled_new_reqs:
            # A preempted request comes back as a new one, without its drafts.
            self._proposals.pop(new.req_id, None)
            params = new.sampling_params
            settings = DraftSettings.read(params)
            if settings is not None and settings.may_draft:
                answer = list(new.prefill_token_ids[len(new.prompt_token_ids) :])
                self._drafted[new.req_id] = _Drafted(params.temperature, answer)
        self.report = DraftReport({}, {})
        if self._leads:
            self.drafts.begin_step(scheduled)

    def _mask(self, batch: Any) -> torch.Tensor | None:
        """Write -1 over the reserved places that have no draft, and return their indices in the step's tokens, which
        the forward has already read."""
        counts = batch.num_draft_tokens_per_req
        if counts is None:
            return None
        places: list[int] = []
        for row, (id, reserved) in enumerate(zip(batch.req_ids, counts.tolist(), strict=True)):
            proposal = self._proposals.get(id)
            drafts = min(reserved, proposal.tokens.size) if proposal is not None else 0
            if reserved:
                self.report.verified[id] = drafts
            first = int(batch.cu_num_logits_np[row]) + 1
            places += range(first + drafts, first + reserved)
        if not places:
            return None
        masked: torch.Tensor = batch.logits_indices[async_tensor_h2d(np.array(places, np.int64), self._device)]
        batch.input_ids.index_fill_(0, masked, -1)
        return masked

    def propose(self, input_batch: Any, *args: Any, dummy_run: bool = False, **kwargs: Any) -> torch.Tensor:
        """int64 [requests, K]: the drafts of each request, filled up with 0. Other arguments are for local models."""
        drafts = np.zeros((input_batch.num_reqs, self._most), np.int64)
        rows = {} if dummy_run else self._sampling_rows(input_batch)
        if rows:
            proposals = self._proposed(input_batch.req_ids)
            if self._group.world_size > 1:
                proposals = self._group.broadcast_object(proposals if self._leads else None, src=0)
            for id, row in rows.items():
                self._proposals.pop(id, None)
                if id in proposals:
                    drafts[row, : proposals[id].tokens.size] = proposals[id].tokens
            self._proposals |= proposals
            self._logits.write(
                {
                    int(input_batch.idx_mapping_np[row]): (proposals.get(id), self._drafted[id].temperature)
                    for id, row in rows.items()
                }
            )
        self._proposed_for = list(input_batch.req_ids)
        return async_tensor_h2d(drafts, self._device)

    def _sampling_rows(self, batch: Any) -> dict[str, int]:
        """The requests of the step that may get drafts and have sampled a token. All ranks find the same."""
        samples = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np
        return {id: row for row, id in enumerate(batch.req_ids) if id in self._drafted and samples[row]}

    def _proposed(self, ids: list[str]) -> Mapping[str, Drafted]:
        """On rank 0: wait for the sampled tokens, record them, and ask for drafts."""
        if not self._leads:
            return {}
        tokens, counts = (part.cpu().numpy() for part in self._sampled)
        rows = []
        for id, sampled, count in zip(ids, tokens, counts.tolist(), strict=True):
            drafted = self._drafted.get(id)
            if count and drafted is not None:
                new = sampled[:count].tolist()
                drafted.answer += new
                answer: Int32Array = np.array(drafted.answer, np.int32)
                rows.append(Verified(id, self.report.verified.get(id, 0), new, answer))
        proposals = self.drafts.propose(rows, int((counts > 0).sum()))
        self.report.wanted.update(self.drafts.wanted(row.id for row in rows))
        return proposals

    def take_draft_token_ids(self) -> DraftTokenIds:
        """The drafts of the last step, for the scheduler: without async scheduling, and to check them by a grammar."""
        found = [self._proposals.get(id) for id in self._proposed_for]
        return DraftTokenIds(self._proposed_for, [p.tokens.tolist() if p is not None else [] for p in found])


class DraftLogits:
    """table: float32 [requests, K, vocabulary], log q times the temperature of the request; -inf where q is 0.

    The rejection sampler divides by the temperature (vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils).
    """

    def __init__(self, requests: int, most: int, vocabulary: int, device: torch.device) -> None:
        self.table = torch.full((requests, most, vocabulary), -torch.inf, device=device)
        self._written: dict[int, Int64Array] = {}

    def write(self, rows: Mapping[int, tuple[Drafted | None, float]]) -> None:
        """Replace the rows of these requests by the q of their proposals. rows: temperature, by index in the table.
        Greedy verification does not read q. Drafts without q are one-hot."""
        _, most, vocabulary = self.table.shape
        stale = [self._written.pop(row) for row in rows if row in self._written]
        places, logits = [], []
        for row, (proposal, temperature) in rows.items():
            if proposal is not None and temperature > 0:
                place, q = q_entries(proposal, row * most + np.arange(proposal.tokens.size), vocabulary)
                with np.errstate(divide="ignore"):
                    logits.append(np.log(q) * np.float32(temperature))
                self._written[row] = place
                places.append(place)
        flat, device = self.table.view(-1), self.table.device
        if stale:
            flat.index_fill_(0, async_tensor_h2d(np.concatenate(stale), device), -torch.inf)
        if places:
            flat.index_copy_(
                0,
                async_tensor_h2d(np.concatenate(places), device),
                async_tensor_h2d(np.concatenate(logits), device),
            )
