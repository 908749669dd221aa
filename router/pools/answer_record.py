"""What the client has of an answer: enough to continue it on another target replica, and to send it in any form.

It also tells what the caches hold after the answer. The engine is always asked for new tokens only (DELTA). The outputs
that the client asked for are made here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import (
    CUMULATIVE,
    DELTA,
    FINAL_ONLY,
    Completion,
    GenerateOutput,
    GenerateRequest,
    TokenLogprob,
)

STREAM_INTERVAL = 16
"""Tokens per message of an answer that the client gets as a whole."""

MAX_TOGETHER = 256
"""With more log probabilities a token (-1: all), tokens travel one by one: a message has a limit."""


def in_larger_messages(sampling: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
    """These sampling parameters, with at least so many tokens in each message but the first and the last."""
    tokens = max(tokens, sampling.get("stream_interval") or 1)
    few = 0 <= (sampling.get("logprobs") or 0) <= MAX_TOGETHER
    return {**sampling, "stream_interval": tokens} if few and tokens > 1 else sampling


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
        self._continues = False
        self.asked = request
        if self._kind != DELTA:
            sampling: Mapping[str, Any] = {**request.sampling, "output_kind": DELTA}
            if self._kind == FINAL_ONLY:
                sampling = in_larger_messages(sampling, STREAM_INTERVAL)
            self.asked = replace(request, sampling=sampling)

    @property
    def begun(self) -> bool:
        return any(part.token_ids or part.finish_reason for part in self._parts)

    @property
    def finished(self) -> bool:
        return all(part.finish_reason is not None for part in self._parts)

    @property
    def is_single(self) -> bool:
        """Whether there is one answer. Several are not continued."""
        return len(self._parts) == 1

    @property
    def tokens(self) -> int:
        """The number of tokens of the first answer."""
        return len(self._parts[0].token_ids)

    @property
    def first_token_ids(self) -> Int32Array:
        """The tokens of the first answer, int32 [A]."""
        return np.array(self._parts[0].token_ids, np.int32)

    def continuation(self) -> GenerateRequest:
        """The request that continues a single answer on any replica."""
        [part], self._continues = self._parts, True
        part.before = part.cumulative_logprob or 0.0
        sampling = dict(self.asked.sampling)
        sampling.pop("prompt_logprobs", None)  # the first output had them
        sampling.pop("stream_interval", None)  # so that each token shows that the replica makes progress
        answered = len(part.token_ids)
        prompt = self.asked.prompt.extended(part.token_ids) if answered else self.asked.prompt
        return replace(self.asked, prompt=prompt, sampling=sampling, answered=answered)

    def add(self, output: GenerateOutput) -> GenerateOutput | None:
        """Record an output of an engine. Returns the output for the client; None if there is none yet."""
        earlier, self._first = self._first, self._first or output
        if self._continues:
            grown = [self._grow(self._continued(completion)) for completion in output.completions]
        else:
            # Some engines tell it on their first output only.
            self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
            self._created_tokens = max(self._created_tokens, output.created_tokens)
            grown = [self._grow(completion) for completion in output.completions]
        if self._kind == DELTA:
            if not self._continues:
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

    def _continued(self, new: Completion) -> Completion:
        logprob, before = new.cumulative_logprob, self._parts[0].before
        return replace(new, cumulative_logprob=None if logprob is None else before + logprob)

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
