"""What vLLM tells: outputs as messages for the router, and counts."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
from vllm.logprobs import LogprobsOnePosition, PromptLogprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.metrics.loggers import StatLoggerBase

from kv_transfer.messages import Completion, GenerateOutput, GenerateRequest, TokenLogprob

SCORING: Mapping[str, Any] = {"prompt_logprobs": 0, "skip_reading_prefix_cache": False, "flat_logprobs": True}
"""Fields of vllm.SamplingParams for a request with `scored`. Unless told, vLLM leaves its prefix cache out for such a
request. Flat, the V1 runner's row for each token of a prompt takes a few microseconds of the front process."""

SLICE = 256
"""Positions of a prompt whose log probabilities are converted at once."""


def last_scores(output: RequestOutput, request: GenerateRequest) -> PromptLogprobs | None:
    """The rows of the `scored` tokens; None if the request did not compute them all, and the token before them.

    The V1 runner has a row for each token of the prompt, and those of cached tokens are uninitialised; the V2 runner
    has the rows of computed tokens. The last ones are right on both.
    """
    computed = int(request.prompt.token_ids.size) - (output.num_cached_tokens or 0)
    told = output.prompt_logprobs
    return told[-request.scored :] if told and computed > request.scored else None


async def generate_output(output: RequestOutput, *, with_timings: bool) -> GenerateOutput:
    """The message of one step. with_timings: the first output has the milliseconds in the queue of the engine core, and
    from the first scheduling to the first token.
    """
    positions, stats = output.prompt_logprobs or [], output.metrics
    rows: list[list[TokenLogprob] | None] = []
    for begin in range(0, len(positions), SLICE):
        rows += [_candidates(position) if position else None for position in positions[begin : begin + SLICE]]
        await asyncio.sleep(0)  # other tasks run in between: a long prompt takes seconds
    timings: dict[str, float] = {}
    if with_timings and stats:
        timings["queue"] = 1e3 * max(stats.scheduled_ts - stats.queued_ts, 0.0)
        timings["prefill"] = 1e3 * max(stats.first_token_ts - stats.scheduled_ts, 0.0)
    return GenerateOutput(
        completions=[_completion(c) for c in output.outputs],
        finished=output.finished,
        cached_tokens=output.num_cached_tokens or 0,
        created_tokens=output.num_cache_creation_tokens or 0,
        prompt_logprobs=rows or None,
        timings=timings,
        kv_blocks=output.kv_transfer_params,
    )


def _completion(output: CompletionOutput) -> Completion:
    return Completion(
        index=output.index,
        text=output.text,
        token_ids=np.asarray(output.token_ids, np.int32),
        # Both forms of vLLM's SampleLogprobs yield one dict per token, with the sampled token first.
        logprobs=None if output.logprobs is None else [_candidates(position) for position in output.logprobs],
        cumulative_logprob=output.cumulative_logprob,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )


def _candidates(position: LogprobsOnePosition) -> list[TokenLogprob]:
    return [TokenLogprob(id, p.logprob, p.rank, p.decoded_token) for id, p in position.items()]


class EngineCounts(StatLoggerBase):
    """Counts of vLLM's scheduler since the start: verifications (rounds), drafts and accepted drafts, the latter two
    also by position; finished transfers of KV blocks to this engine, their bytes, and failed transfers.
    """

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        most = vllm_config.num_speculative_tokens
        self.decode: dict[str, Any] = dict.fromkeys(("rounds", "drafts", "accepted"), 0)
        self.decode |= {"drafts_per_position": [0] * most, "accepted_per_position": [0] * most}
        self.transfer = {"transfers": 0, "transferred_bytes": 0, "failed_transfers": 0}

    def record(self, scheduler_stats: Any, *args: Any, **kwargs: Any) -> None:
        if (step := getattr(scheduler_stats, "spec_decoding_stats", None)) is not None:
            self.decode["rounds"] += step.num_drafts
            self.decode["drafts"] += step.num_draft_tokens
            self.decode["accepted"] += step.num_accepted_tokens
            for name, counts in (
                ("drafts_per_position", step.num_draft_tokens_per_pos),
                ("accepted_per_position", step.num_accepted_tokens_per_pos),
            ):
                self.decode[name] = [total + count for total, count in zip(self.decode[name], counts, strict=True)]
        if (stats := getattr(scheduler_stats, "kv_connector_stats", None)) is not None:
            data = stats.data if hasattr(stats, "data") else stats
            self.transfer["transfers"] += len(data.get("bytes_transferred", []))
            self.transfer["transferred_bytes"] += int(sum(data.get("bytes_transferred", [])))
            self.transfer["failed_transfers"] += len(data.get("num_failed_transfers", []))

    def log_engine_initialized(self) -> None:
        """Logs nothing."""
