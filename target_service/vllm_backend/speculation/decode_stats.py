"""Counts speculation from the statistics of vLLM's scheduler. They are the same for all methods, runners and ranks."""

import copy
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class DecodeCounts(StatLoggerBase):
    """Counts of rounds (verifications), drafts and accepted drafts; the latter two also by position."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        most = vllm_config.num_speculative_tokens
        self.rounds = self.drafts = self.accepted = 0
        self.drafts_per_position, self.accepted_per_position = [0] * most, [0] * most

    def record(self, scheduler_stats: Any, *args: Any, **kwargs: Any) -> None:
        step = getattr(scheduler_stats, "spec_decoding_stats", None)
        if step is None:
            return
        self.rounds += step.num_drafts
        self.drafts += step.num_draft_tokens
        self.accepted += step.num_accepted_tokens
        for position, count in enumerate(step.num_draft_tokens_per_pos):
            self.drafts_per_position[position] += count
        for position, count in enumerate(step.num_accepted_tokens_per_pos):
            self.accepted_per_position[position] += count

    def counts(self) -> dict[str, Any]:
        """The present counts by name."""
        return copy.deepcopy(dict(vars(self)))

    def log_engine_initialized(self) -> None:
        """Logs nothing."""
