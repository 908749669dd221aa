"""Remote drafting in vLLM's V1 model runner: `speculative_config={"method": "custom_class", "model": PROPOSER, ...}`.

Each tensor-parallel rank has a proposer, because each rank verifies. Only rank 0 talks to the drafters, decides and
counts. It sends the distributions of the drafts to the other ranks. The scheduler takes the drafts from rank 0.
"""

from typing import Any

import numpy as np
from vllm.distributed.parallel_state import get_tp_group

from target_service.drafting.target_session import Proposal
from target_service.vllm_backend.speculation.draft_probs import DraftDistributions
from target_service.vllm_backend.speculation.remote_drafts import RemoteDrafts, Verified

PROPOSER = "target_service.vllm_backend.speculation.proposer.RemoteProposer"


class RemoteProposer:
    """The class that vLLM's runner creates for custom_class (vllm.v1.spec_decode.custom_class_proposer)."""

    def __init__(self, vllm_config: Any) -> None:
        self._drafts = RemoteDrafts(vllm_config)

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
        if self._leads:
            self._drafts.begin_step(scheduled)

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Drafts for each row of the batch. sampled_token_ids: accepted drafts and one token; empty in prefill."""
        ids = self._runner.input_batch.req_ids
        proposals: dict[str, Proposal] = {}
        if self._leads:
            rows = [
                self._verified(row, ids[row], sampled, num_tokens_no_spec, token_ids_cpu)
                for row, sampled in enumerate(sampled_token_ids)
                if sampled
            ]
            self._drafts.observe(rows)
            proposals = self._drafts.propose(rows, len(rows))
        # All ranks decide this in the same way, from data that all of them have.
        if self._group.world_size > 1 and not self._runner.input_batch.all_greedy:
            proposals = self._group.broadcast_object(proposals if self._leads else None, src=0)
        self._distributions.proposals = proposals
        return [proposals[id].tokens.tolist() if id in proposals else [] for id in ids[: len(sampled_token_ids)]]

    def _verified(self, row: int, id: str, sampled: list[int], num_tokens: Any, token_ids: Any) -> Verified:
        # vLLM pads a request that joins a decode step with drafts of -1.
        drafts = sum(draft >= 0 for draft in self._distributions.scheduled.get(id, ()))
        if not self._drafts.follows(id):
            return Verified(id, drafts, sampled, np.empty(0, np.int32))
        start, end = int(self._runner.input_batch.num_prompt_tokens[row]), int(num_tokens[row])
        return Verified(id, drafts, sampled, token_ids[row, start:end].astype(np.int32))

    def stats(self) -> dict[str, Any]:
        """Counts since the start, for metrics. Only rank 0 has them."""
        return self._drafts.stats()

    def shutdown(self) -> None:
        self._drafts.shutdown()
