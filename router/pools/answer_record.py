"""What the client has of an answer: enough to continue it on another target replica, and to send it in any form.

It also tells what the caches hold after the answer. The engine is always asked for new tokens only (DELTA). The outputs
that the client asked for are made here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import Completion, GenerateOutput, GenerateRequest, TokenLogprob
from kv_transfer.sampling import CUMULATIVE, DELTA, FINAL_ONLY

STREAM_INTERVAL = 16
"""Tokens per message of an answer that the client gets as a whole (vllm.SamplingParams.stream_interval)."""

MAX_TOGETHER = 256
"""With more log probabilities a token (-1: all), tokens travel one by one: a message has a limit."""


@dataclass(slots=True)
class _Part:
    """One of the n answers. text, logprobs: kept if the client gets more than new tokens.

    before: the cumulative logprob of the tokens that other replicas made.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[list[TokenLogprob]] | None = None
    cumulative_logprob: float | None = None
    before: float = 0.0
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class AnswerRecord:
    """The n answers of one request.

    request: as the dispatcher made it; its `output_kind` is the client's. asked: what an engine gets: the same request
    with DELTA outputs. hold: called with the number of log probabilities that are added to an answer held here; it may
    raise an error that ends the request.
    """

    def __init__(self, request: GenerateRequest, hold: Callable[[int], None] = lambda count: None) -> None:
        self._hold = hold
        self._kind = request.sampling.get("output_kind", DELTA)
        self._parts = [_Part() for _ in range(request.sampling.get("n") or 1)]
        self._first: GenerateOutput | None = None
        self._cached_tokens = self._created_tokens = 0
        self.asked = request
        if self._kind != DELTA:
            few = 0 <= (request.sampling.get("logprobs") or 0) <= MAX_TOGETHER
            interval = {"stream_interval": STREAM_INTERVAL} if self._kind == FINAL_ONLY and few else {}
            self.asked = replace(request, sampling={**request.sampling, "output_kind": DELTA, **interval})

    @property
    def begun(self) -> bool:
        return any(part.token_ids or part.finish_reason for part in self._parts)

    @property
    def finished(self) -> bool:
        return not self.unfinished

    @property
    def unfinished(self) -> list[int]:
        """The indices of the answers that are not complete."""
        return [index for index, part in enumerate(self._parts) if part.finish_reason is None]

    @property
    def tokens(self) -> int:
        """The number of tokens of all unfinished answers."""
        return sum(len(self._parts[index].token_ids) for index in self.unfinished)

    @property
    def first_token_ids(self) -> Int32Array:
        """The tokens of the first answer, int32 [A]."""
        return np.array(self._parts[0].token_ids, np.int32)

    def continuation(self, index: int) -> GenerateRequest:
        """The request that continues answer `index` alone, on any replica. The drafting session is the first one's."""
        asked, part = self.asked, self._parts[index]
        part.before = part.cumulative_logprob or 0.0
        answered = len(part.token_ids)
        prompt = asked.prompt.extended(part.token_ids) if answered else asked.prompt
        sampling: dict[str, Any] = {**asked.sampling, "n": 1}
        sampling.pop("prompt_logprobs", None)  # the first output had them
        sampling.pop("stream_interval", None)  # so that each token shows that the replica makes progress
        if (seed := sampling.get("seed")) is not None:
            # As vLLM's seeds of the n answers (vllm.v1.engine.parallel_sampling.ParentRequest).
            sampling["seed"] = seed + index
        return replace(
            asked,
            request_id=asked.request_id if len(self._parts) == 1 else f"{asked.request_id}-{index}",
            prompt=prompt if index == 0 else replace(prompt, session=None),
            sampling=sampling,
            answered=answered,
        )

    def add(self, output: GenerateOutput, index: int | None = None) -> GenerateOutput | None:
        """Record an output of an engine. Returns the output for the client; None if there is none yet.

        index: the answer that the engine continues alone; None if the engine makes all n answers.
        """
        earlier, self._first = self._first, self._first or output
        if index is None:
            # Some engines tell it on their first output only.
            self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
            self._created_tokens = max(self._created_tokens, output.created_tokens)
            grown = [self._grow(completion) for completion in output.completions]
        else:
            grown = [self._grow(self._continued(completion, index)) for completion in output.completions]
        if self._kind == DELTA:
            if index is None:
                return output
            return GenerateOutput(grown, self.finished, self._cached_tokens, created_tokens=self._created_tokens)
        if self._kind == FINAL_ONLY and not self.finished:
            return None
        indices = (completion.index for completion in grown)
        return GenerateOutput(
            self._whole(indices if self._kind == CUMULATIVE else range(len(self._parts))),
            self.finished,
            self._cached_tokens,
            self._first.prompt_logprobs,
            self._first.timings if earlier is None or self._kind == FINAL_ONLY else {},
            created_tokens=self._created_tokens,
        )

    def _continued(self, new: Completion, index: int) -> Completion:
        logprob = new.cumulative_logprob
        before = self._parts[index].before
        return replace(new, index=index, cumulative_logprob=None if logprob is None else before + logprob)

    def _grow(self, new: Completion) -> Completion:
        part = self._parts[new.index]
        part.token_ids += new.token_ids.tolist()
        part.cumulative_logprob = new.cumulative_logprob
        part.finish_reason, part.stop_reason = new.finish_reason, new.stop_reason
        if self._kind != DELTA:
            part.text += new.text
            if new.logprobs is not None:
                self._hold(sum(map(len, new.logprobs)))
                part.logprobs = part.logprobs or []
                part.logprobs += new.logprobs
        return new

    def _whole(self, indices: Iterable[int]) -> list[Completion]:
        parts = ((index, self._parts[index]) for index in indices)
        return [
            Completion(
                index,
                part.text,
                np.array(part.token_ids, np.int32),
                part.logprobs,
                part.cumulative_logprob,
                part.finish_reason,
                part.stop_reason,
            )
            for index, part in parts
        ]
