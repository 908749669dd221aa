"""Which token's query each scored request wants from each engine step, read from the scheduler's output alone.

`vllm.v1.core.sched.output.SchedulerOutput` says all that is needed: chunked prefill, prefix-cache hits and preemption
show in it as token counts and block ids, the same for both of vLLM's model runners.
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
    """One prompt on its way through the engine.

    prompt: tokens M. blocks: KV cache block ids in order. queries: step -> [L, H, D], the queries of that step's token.
    tokens: step -> the token that it decoded; known on the rank that returns the output.
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
    """One query to capture in this engine step: step 0 is the last prompt token's, step i the i-th decoded token's.

    slot: where in the KV cache that token's key lands. It belongs to this token alone, whatever the batch's order.
    """

    request: ScoredRequest
    step: int
    slot: int

    @property
    def is_last(self) -> bool:
        return self.step == self.request.look_ahead


class RequestLedger:
    """The scored requests that are alive.

    resumed: how often one came back after a preemption. cached_tokens: prompt tokens that the prefix cache spared.
    """

    def __init__(self, block_size: int) -> None:
        """block_size: tokens per block of the KV cache's one group, as the scheduler counts them."""
        self.requests: dict[str, ScoredRequest] = {}
        self.resumed = 0
        self.cached_tokens = 0
        self._block_size = block_size

    def update(self, output: SchedulerOutput) -> list[Wanted]:
        """Follow one scheduling step and say which queries to capture in it. Frees finished and aborted requests."""
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
                request.blocks += blocks[0] if blocks else []
                computed[request_id] = start
        found = (
            self._want(self.requests[request_id], start + output.num_scheduled_tokens[request_id] - 1)
            for request_id, start in computed.items()
        )
        return [wanted for wanted in found if wanted]

    def _admit(self, new: NewRequestData) -> bool:
        """Take up a request that wants scores. The V2 runner sees a resumed request as a new one with known tokens."""
        if known := self.requests.get(new.req_id):
            self.resumed += 1
            known.blocks = list(new.block_ids[0])
            return True
        options = ((new.sampling_params and new.sampling_params.extra_args) or {}).get(SCORE_ARG)
        if options is None:
            return False
        self.cached_tokens += new.num_computed_tokens
        self.requests[new.req_id] = ScoredRequest(new.req_id, new.prompt_len, options, list(new.block_ids[0]))
        return True

    def _want(self, request: ScoredRequest, position: int) -> Wanted | None:
        """The query at `position`, the last one that this step computes, unless it is inside the prompt."""
        step = position - (request.prompt - 1)
        if not 0 <= step <= request.look_ahead:
            return None
        block, offset = divmod(position, self._block_size)
        return Wanted(request, step, request.blocks[block] * self._block_size + offset)
