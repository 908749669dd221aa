"""The distributions of remote drafts in the form that vLLM's V2 rejection sampler reads: a table of logits.

The table is allocated before vLLM profiles its memory, so vLLM counts it: max_num_seqs * K * vocabulary * 4 bytes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from kv_transfer.arrays import Float32Array
from kv_transfer.position_map import Int64Array
from target_service.drafting.target_session import Proposal


class DraftLogits:
    """table: float32 [requests, K, vocabulary], log q times the temperature of the request; -inf where q is 0.

    The rejection sampler divides by the temperature (vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils).
    """

    def __init__(self, requests: int, most: int, vocabulary: int, device: torch.device) -> None:
        self.table = torch.full((requests, most, vocabulary), -torch.inf, device=device)
        self._written: dict[int, Int64Array] = {}

    def write(self, rows: Mapping[int, tuple[Proposal | None, float]]) -> None:
        """Replace the rows of these requests by the q of their proposals. Rows: index in the table, temperature.

        Rows of temperature 0 are not written: greedy verification does not read q. Drafts without q are one-hot.
        """
        stale = [self._written.pop(row) for row in rows if row in self._written]
        places, logits = [], []
        for row, (proposal, temperature) in rows.items():
            if proposal is not None and temperature > 0:
                place, logit = self._entries(row, proposal, temperature)
                self._written[row] = place
                places.append(place)
                logits.append(logit)
        flat, device = self.table.view(-1), self.table.device
        if stale:
            flat.index_fill_(0, async_tensor_h2d(np.concatenate(stale), device), -torch.inf)
        if places:
            flat.index_copy_(
                0,
                async_tensor_h2d(np.concatenate(places), device),
                async_tensor_h2d(np.concatenate(logits), device),
            )

    def _entries(self, row: int, proposal: Proposal, temperature: float) -> tuple[Int64Array, Float32Array]:
        """Flat places in the table, int64 [n], and the logits, float32 [n]."""
        _, most, vocabulary = self.table.shape
        count, width = proposal.q_ids.shape
        ids = proposal.q_ids if width else proposal.tokens[:, None]
        first = (row * most + np.arange(count, dtype=np.int64)) * vocabulary
        q = proposal.q_probs if width else np.ones((count, 1), np.float32)
        with np.errstate(divide="ignore"):
            logits = np.log(q) * np.float32(temperature)
        return (first[:, None] + ids).ravel(), logits.astype(np.float32).ravel()
