"""Converts vLLM's RequestOutput into the message for the router."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import numpy as np
from vllm.logprobs import LogprobsOnePosition, PromptLogprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.metrics.stats import RequestStateStats

from kv_transfer.messages import Completion, GenerateOutput, TokenLogprob
from kv_transfer.reply_pieces import PIECE_LOGPROBS


async def generate_output(output: RequestOutput, *, with_timings: bool) -> GenerateOutput:
    """The message of one step. with_timings: this is the first output, which includes queue and prefill times."""
    told = output.prompt_logprobs
    return GenerateOutput(
        completions=[_completion(c) for c in output.outputs],
        finished=output.finished,
        cached_tokens=output.num_cached_tokens or 0,
        created_tokens=output.num_cache_creation_tokens or 0,
        prompt_logprobs=[c async for c in _in_turns(told)] if told else None,
        timings=_timings(output.metrics) if with_timings and output.metrics else {},
        kv_blocks=output.kv_transfer_params,
    )


def has_failed(output: RequestOutput) -> bool:
    """Whether vLLM has given the request up."""
    return any(c.finish_reason == "error" for c in output.outputs)


async def _in_turns(prompt_logprobs: PromptLogprobs) -> AsyncIterator[list[TokenLogprob] | None]:
    """The candidates of each position. Other tasks run in between: a long prompt takes seconds."""
    made = 0
    for position in prompt_logprobs:
        candidates = _candidates(position) if position else None
        yield candidates
        made += len(candidates or ())
        if made >= PIECE_LOGPROBS:
            made = 0
            await asyncio.sleep(0)


def _completion(output: CompletionOutput) -> Completion:
    return Completion(
        index=output.index,
        text=output.text,
        token_ids=np.asarray(output.token_ids, np.int32),
        logprobs=None if output.logprobs is None else _positions(output.logprobs),
        cumulative_logprob=output.cumulative_logprob,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )


def _positions(logprobs: Iterable[LogprobsOnePosition]) -> list[list[TokenLogprob]]:
    """Works for both forms of vLLM's SampleLogprobs. Each yields one dict per token, with the sampled token first."""
    return [_candidates(p) for p in logprobs]


def _candidates(position: LogprobsOnePosition) -> list[TokenLogprob]:
    return [TokenLogprob(id, p.logprob, p.rank, p.decoded_token) for id, p in position.items()]


def _timings(stats: RequestStateStats) -> dict[str, float]:
    """Milliseconds in the queue of the engine core, and from the first scheduling to the first token."""
    return {
        "queue": 1e3 * max(stats.scheduled_ts - stats.queued_ts, 0.0),
        "prefill": 1e3 * max(stats.first_token_ts - stats.scheduled_ts, 0.0),
    }
