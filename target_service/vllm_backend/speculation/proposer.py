"""Remote drafting in vLLM's V1 model runner: `speculative_config={"method": "custom_class", "model": PROPOSER, ...}`.

Each tensor-parallel rank has a proposer, because each rank verifies. Only rank 0 talks to the drafters. It sends the
distributions of the drafts to the other ranks.

vLLM's rejection sampler gets these distributions by `GPUModelRunner._get_spec_decode_draft_probs`, which is replaced:
vLLM's own tensor [requests, K, vocabulary] would take hundreds of MB for a large batch. Here only the verified rows are
built, from the few (id, probability) pairs of each draft.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.utils.torch_utils import async_tensor_h2d

from kv_transfer.drafts import Drafted
from target_service.drafting.requests import Verified
from target_service.drafting.session import q_entries
from target_service.vllm_backend.speculation.remote_drafts import RemoteDrafts

PROPOSER = "target_service.vllm_backend.speculation.proposer.RemoteProposer"


class RemoteProposer:
    """The class that vLLM's runner creates for custom_class (vllm.v1.spec_decode.custom_class_proposer).

    drafts: works on rank 0 alone.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.drafts = RemoteDrafts(vllm_config)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM's CPU runner calls this for every drafter. The drafting model runs in another process."""

    def attach(self, runner: Any) -> None:
        """Set the model runner before the first step. vLLM does not pass it to a proposer."""
        self._runner = runner
        self._group = get_tp_group()
        self._leads = self._group.rank_in_group == 0
        self._distributions = DraftDistributions(runner)

    def begin_step(self, scheduled: Any) -> None:
        """Process the scheduler's output (vllm.v1.core.sched.output.SchedulerOutput) before the forward."""
        self._distributions.scheduled = scheduled.scheduled_spec_decode_tokens
        if self._leads:
            self.drafts.begin_step(scheduled)

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Drafts for each row of the batch. sampled_token_ids: accepted drafts and one token; empty in prefill."""
        batch, scheduled = self._runner.input_batch, self._distributions.scheduled
        ids, rows = batch.req_ids[: len(sampled_token_ids)], []
        proposals: dict[str, Drafted] = {}
        if self._leads:
            for row, (id, sampled) in enumerate(zip(ids, sampled_token_ids, strict=True)):
                if sampled and self.drafts.follows(id):
                    # vLLM pads a request that joins a decode step with drafts of -1.
                    drafts = sum(draft >= 0 for draft in scheduled.get(id, ()))
                    answer = token_ids_cpu[row, batch.num_prompt_tokens[row] : num_tokens_no_spec[row]]
                    rows.append(Verified(id, drafts, sampled, answer.astype(np.int32)))
            proposals = self.drafts.propose(rows, sum(map(bool, sampled_token_ids)))
        # All ranks decide this in the same way, from data that all of them have.
        if self._group.world_size > 1 and not batch.all_greedy:
            proposals = self._group.broadcast_object(proposals if self._leads else None, src=0)
        self._distributions.proposals = proposals
        return [proposals[id].tokens.tolist() if id in proposals else [] for id in ids]


class DraftDistributions:
    """The q of the drafts that the next step verifies. scheduled: the drafts that the scheduler sends to verification.
    If they are not the first drafts of the request's proposal, they are treated as one-hot, which is exact for any
    draft.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.proposals: Mapping[str, Drafted] = {}
        self.scheduled: Mapping[str, list[int]] = {}
        runner._get_spec_decode_draft_probs = self._draft_probs

    def _draft_probs(self, metadata: Any) -> torch.Tensor | None:
        """float32 [drafts of this step, vocabulary], in the order of the batch; None if all drafts are one-hot."""
        # Valid for one verification. vLLM may replace the next drafts by its own (zeros, near max_model_len).
        proposals, self.proposals = self.proposals, {}
        starts = np.cumsum([0, *metadata.num_draft_tokens]).tolist()
        sampled = []
        for row, request_id in enumerate(self._runner.input_batch.req_ids):
            count = metadata.num_draft_tokens[row]
            proposal = proposals.get(request_id) if count else None
            scheduled = self.scheduled.get(request_id, [])
            if proposal is None or not proposal.q_ids.size:
                continue
            if proposal.tokens[: len(scheduled)].tolist() == list(scheduled):
                sampled.append((np.arange(starts[row], starts[row] + count), proposal))
        if not sampled:
            return None
        drafts, vocabulary = metadata.draft_token_ids.long(), self._runner.input_batch.vocab_size
        pairs = [q_entries(proposal, rows, vocabulary) for rows, proposal in sampled]
        # All requests together need two copies to the device.
        entries, q = (async_tensor_h2d(np.concatenate(part), drafts.device) for part in zip(*pairs, strict=True))
        probs = torch.zeros(drafts.numel(), vocabulary, device=drafts.device)
        # vLLM pads a request that joins a decode step with drafts of -1. They are always rejected. Their q is 0, so the
        # replacement is drawn from p.
        certain = (drafts >= 0).float().index_fill_(0, entries // vocabulary, 0.0)
        probs.scatter_(1, drafts.clamp(min=0)[:, None], certain[:, None])
        probs.view(-1).index_add_(0, entries, q)
        return probs
