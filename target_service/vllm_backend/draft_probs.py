"""Gives vLLM's rejection sampler the distributions that remote drafts were sampled from.

vLLM's own way, `_draft_probs` [requests, K, vocabulary], would be hundreds of MB at a large batch; this makes only the
rows that are verified, from the few (id, probability) pairs that came with each draft.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from target_service.drafting.target_session import Proposal

_REPLACED = "GPUModelRunner._get_spec_decode_draft_probs"
HOOKED = (("vllm.v1.worker.gpu_model_runner", _REPLACED, "self spec_decode_metadata"),)
"""For `symbols.check_symbols`."""


class DraftDistributions:
    """The q of the drafts that the next step verifies, by request id.

    scheduled: the drafts that the scheduler sent to be verified, set before each step. A request whose scheduled drafts
    are not the start of its proposal counts as one-hot, which is exact for any draft.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.proposals: Mapping[str, Proposal] = {}
        self.scheduled: Mapping[str, list[int]] = {}
        runner._get_spec_decode_draft_probs = self._draft_probs

    def _draft_probs(self, metadata: Any) -> torch.Tensor | None:
        """float32 [drafts of this step, vocabulary], in the batch's order; None if all drafts are one-hot."""
        # Good for one verification: vLLM may put drafts of its own (zeros, near max_model_len) in place of the next.
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
        drafts = metadata.draft_token_ids.long()
        probs = torch.zeros(drafts.numel(), self._runner.input_batch.vocab_size, device=drafts.device)
        # vLLM pads a request that joins a decode step with drafts that are none (-1): always rejected, and with q = 0
        # what comes instead is drawn from p.
        probs.scatter_(1, drafts.clamp(min=0)[:, None], (drafts >= 0).float()[:, None])
        for start, end, proposal in sampled:
            ids = async_tensor_h2d(proposal.q_ids[: end - start].astype(np.int64), drafts.device)
            q = async_tensor_h2d(proposal.q_probs[: end - start].astype(np.float32), drafts.device)
            probs[start:end].zero_().scatter_add_(1, ids, q)
        return probs

    def _verifies(self, request_id: str, proposal: Proposal) -> bool:
        scheduled = self.scheduled.get(request_id, ())
        return proposal.tokens[: len(scheduled)].tolist() == list(scheduled)
