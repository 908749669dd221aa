"""Finds the queries that each scored request needs from each engine step, from the scheduler's output alone.

It shows chunked prefill, prefix-cache hits and preemption as token counts and block ids, to both model runners alike.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import torch
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

from speculator_service.scoring.queries import MAX_QUESTION_ROWS, SCORE_ARG, ScoreQueries

STEP_ROWS = 16 * MAX_QUESTION_ROWS
"""The question rows that one engine step captures, at least. If more prompts end in a step, each has fewer rows."""


@dataclass(slots=True, eq=False)
class ScoredRequest:
    """prompt: number of tokens M. blocks: KV cache block ids in order. queries: position -> [L, H, D]. tokens: step ->
    the token that it decoded; known only on the rank that returns the output. questions: the rows of each question.
    """

    id: str
    prompt: int
    asked: ScoreQueries
    blocks: list[int] = field(default_factory=list)
    queries: dict[int, torch.Tensor] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    questions: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.questions = [[*range(*span)] for span in self.asked.questions]

    @property
    def rows(self) -> list[int]:
        """The rows of all questions."""
        return [row for of_one in self.questions for row in of_one]

    @property
    def steps(self) -> range:
        """The positions of the last prompt token and of the look-ahead tokens."""
        return range(self.prompt - 1, self.prompt + self.asked.look_ahead)

    @property
    def look_ahead(self) -> list[int]:
        """The look-ahead tokens, on the rank that knows them."""
        return [self.tokens[step] for step in range(self.asked.look_ahead)]

    def captured(self, positions: Sequence[int], missing: torch.Tensor) -> torch.Tensor:
        """The queries at these positions, [L, S, H, D]. missing: [L, H, D], in place of one that was not captured."""
        return torch.stack([self.queries.get(position, missing) for position in positions], dim=1)


class Computed(NamedTuple):
    """The positions [start, end) of a scored request that one engine step computes."""

    request: ScoredRequest
    start: int
    end: int

    @property
    def step(self) -> int:
        """The step at the last of these positions; negative before the last prompt token, which is step 0."""
        return self.end - self.request.prompt

    @property
    def is_last(self) -> bool:
        return self.step == self.request.asked.look_ahead

    @property
    def rows(self) -> list[int]:
        """The question rows among these positions."""
        return [row for row in self.request.rows if self.start <= row < self.end]


class Wanted(NamedTuple):
    """One query to capture in this engine step. slot: the place of the token's key in the KV cache, its own."""

    request: ScoredRequest
    position: int
    slot: int


class RequestLedger:
    """The scored requests that are not finished."""

    def __init__(self, block_size: int, group: int = 0, rows: int = STEP_ROWS) -> None:
        """block_size: tokens per block of the scheduler. group: index of the scored layers' KV cache group.
        rows: limit for the question rows of one step, at least the number of requests in a step."""
        self.requests: dict[str, ScoredRequest] = {}
        self._block_size, self._group, self._rows = block_size, group, rows

    def update(self, output: SchedulerOutput) -> list[Computed]:
        """Process one scheduling step; returns what it computes. Removes finished and aborted requests."""
        for request_id in output.finished_req_ids:
            self.requests.pop(request_id, None)
        computed: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            if self._admit(new):
                computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        known = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for request_id, blocks, start in known:
            if request := self.requests.get(request_id):
                if request_id in cached.resumed_req_ids:
                    request.blocks = []
                request.blocks += blocks[self._group] if blocks else []
                computed[request_id] = start
        return [
            Computed(self.requests[request_id], start, start + output.num_scheduled_tokens[request_id])
            for request_id, start in computed.items()
        ]

    def wanted(self, computed: Sequence[Computed]) -> list[Wanted]:
        """The queries to capture in the step that computes these positions. If they are too many, each question keeps
        an equal number of its last rows, the same on all tensor parallel ranks."""
        share = self._rows // max(1, sum(bool(part.rows) for part in computed))
        wanted, size = [], self._block_size
        for part in computed:
            request, rows = part.request, part.rows
            if len(rows) > share:
                left_out, rows = set(rows[:-share]), rows[-share:]
                kept = ([row for row in of_one if row not in left_out] for of_one in request.questions)
                request.questions = list(filter(None, kept))
            if part.end - 1 in request.steps:
                rows = [*rows, part.end - 1]
            slots = (request.blocks[position // size] * size + position % size for position in rows)
            wanted += [Wanted(request, position, slot) for position, slot in zip(rows, slots, strict=True)]
        return wanted

    def _admit(self, new: NewRequestData) -> bool:
        """Add a request that needs scores. For the V2 runner, a resumed request is a new one with known tokens."""
        if known := self.requests.get(new.req_id):
            known.blocks = list(new.block_ids[self._group])
            return True
        asked = ((new.sampling_params and new.sampling_params.extra_args) or {}).get(SCORE_ARG)
        if asked is None:
            return False
        queries, blocks = msgspec.convert(asked, ScoreQueries), list(new.block_ids[self._group])
        self.requests[new.req_id] = ScoredRequest(new.req_id, new.prompt_len, queries, blocks)
        return True
