"""Finds the queries that each scored request needs from each engine step. Reads only the scheduler's output.

`vllm.v1.core.sched.output.SchedulerOutput` contains the effects of chunked prefill, prefix-cache hits and preemption as
token counts and block ids. They are the same for both of vLLM's model runners.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

SCORE_ARG = "skim_score"
"""Key in `SamplingParams.extra_args`: {look_ahead, pool_kernel, layers, aggregation, eos_token_ids}."""


@dataclass(slots=True, eq=False)
class ScoredRequest:
    """One prompt in the engine.

    prompt: number of tokens M. blocks: KV cache block ids in order. queries: step -> [L, H, D], the queries of that
    step's token. tokens: step -> the token that it decoded; known only on the rank that returns the output.
    """

    id: str
    prompt: int
    options: Mapping[str, Any]
    blocks: list[int] = field(default_factory=list)
    queries: dict[int, torch.Tensor] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @property
    def look_ahead(self) -> int:
        return int(self.options["look_ahead"])


class Wanted(NamedTuple):
    """One query to capture in this engine step. Step 0 is the last prompt token, step i the i-th decoded token.

    slot: the place of the token's key in the KV cache. No other token of the batch has the same slot.
    """

    request: ScoredRequest
    step: int
    slot: int

    @property
    def is_last(self) -> bool:
        return self.step == self.request.look_ahead


class RequestLedger:
    """The scored requests that are not finished.

    resumed: number of resumes after preemption. cached_tokens: prompt tokens that came from the prefix cache.
    """

    def __init__(self, block_size: int, group: int = 0) -> None:
        """block_size: tokens per block of the scheduler. group: index of the scored layers' KV cache group."""
        self.requests: dict[str, ScoredRequest] = {}
        self.resumed = 0
        self.cached_tokens = 0
        self._block_size = block_size
        self._group = group

    def update(self, output: SchedulerOutput) -> list[Wanted]:
        """Process one scheduling step; returns the queries to capture in it. Removes finished and aborted requests."""
        for request_id in output.finished_req_ids:
            self.requests.pop(request_id, None)
        computed: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            if self._admit(new):
                computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for request_id, blocks, start in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if request := self.requests.get(request_id):
                if request_id in cached.resumed_req_ids:
                    self.resumed += 1
                    request.blocks = []
                request.blocks += blocks[self._group] if blocks else []
                computed[request_id] = start
        found = (
            self._want(self.requests[request_id], start + output.num_scheduled_tokens[request_id] - 1)
            for request_id, start in computed.items()
        )
        return [wanted for wanted in found if wanted]

    def _admit(self, new: NewRequestData) -> bool:
        """Add a request that needs scores. For the V2 runner, a resumed request is a new one with known tokens."""
        if known := self.requests.get(new.req_id):
            self.resumed += 1
            known.blocks = list(new.block_ids[self._group])
            return True
        options = ((new.sampling_params and new.sampling_params.extra_args) or {}).get(SCORE_ARG)
        if options is None:
            return False
        self.cached_tokens += new.num_computed_tokens
        self.requests[new.req_id] = ScoredRequest(new.req_id, new.prompt_len, options, list(new.block_ids[self._group]))
        return True

    def _want(self, request: ScoredRequest, position: int) -> Wanted | None:
        """The query at `position`, the last one of this step; None if it is before the end of the prompt."""
        step = position - (request.prompt - 1)
        if not 0 <= step <= request.look_ahead:
            return None
        block, offset = divmod(position, self._block_size)
        return Wanted(request, step, request.blocks[block] * self._block_size + offset)
