"""Gives vLLM's rejection sampler the distributions that remote drafts were sampled from.

vLLM's own tensor `_draft_probs` [requests, K, vocabulary] would take hundreds of MB for a large batch. Here only the
verified rows are built, from the few (id, probability) pairs of each draft.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from kv_transfer.arrays import Float32Array
from kv_transfer.position_map import Int64Array
from target_service.drafting.target_session import Proposal


class DraftDistributions:
    """The q of the drafts that the next step verifies, by request id.

    scheduled: the drafts that the scheduler sends to verification, set before each step. If they are not the first
    drafts of the request's proposal, they are treated as one-hot, which is exact for any draft.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.proposals: Mapping[str, Proposal] = {}
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
            if proposal is not None and proposal.q_ids.shape[1] and self._verifies(request_id, proposal):
                sampled.append((starts[row], starts[row] + count, proposal))
        if not sampled:
            return None
        drafts, vocabulary = metadata.draft_token_ids.long(), self._runner.input_batch.vocab_size
        entries, q = (async_tensor_h2d(part, drafts.device) for part in _entries(sampled, vocabulary))
        probs = torch.zeros(drafts.numel(), vocabulary, device=drafts.device)
        # vLLM pads a request that joins a decode step with drafts of -1. They are always rejected. Their q is 0, so the
        # replacement is drawn from p.
        certain = (drafts >= 0).float().index_fill_(0, entries // vocabulary, 0.0)
        probs.scatter_(1, drafts.clamp(min=0)[:, None], certain[:, None])
        probs.view(-1).index_add_(0, entries, q)
        return probs

    def _verifies(self, request_id: str, proposal: Proposal) -> bool:
        scheduled = self.scheduled.get(request_id, ())
        return proposal.tokens[: len(scheduled)].tolist() == list(scheduled)


def _entries(sampled: list[tuple[int, int, Proposal]], vocabulary: int) -> tuple[Int64Array, Float32Array]:
    """The flat indices into [drafts, vocabulary] and the probabilities of all drafts, int64 [n] and float32 [n].

    sampled: first row, row after the last one, and proposal of each request. All requests together need two copies to
    the device.
    """
    places = [
        np.arange(start, end, dtype=np.int64)[:, None] * vocabulary + proposal.q_ids[: end - start]
        for start, end, proposal in sampled
    ]
    q = [proposal.q_probs[: end - start].ravel() for start, end, proposal in sampled]
    return np.concatenate([part.ravel() for part in places]), np.concatenate(q).astype(np.float32)
