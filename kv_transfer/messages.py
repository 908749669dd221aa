"""The messages between router, speculator pool and target pool, which `kv_transfer.codec` encodes and decodes.

Token ids and positions are int32 numpy arrays. Times are milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, is_ascending, no_numbers
from kv_transfer.layout import TextLayout
from kv_transfer.options import DecodeOptions, SelectionOptions

ACCEPTED = b""
"""The first item of every stream of GenerateOutputs: the target replica has the request."""


@dataclass(frozen=True, slots=True, eq=False)
class SessionHandle:
    """A session for drafting: `id` on the replica whose draft channel is at `address` (host:port)."""

    address: str
    id: str


@dataclass(frozen=True, slots=True, eq=False)
class KeptPrompt:
    """The kept tokens of a prompt, with their original positions: segments in the order in which they are prefilled.

    token_ids: int32 [K]. A token attends to the tokens before it here. positions: int32 [K], distinct, in
    [0, context_length), in any order: they alone carry the order of the text. context_length: M, the tokens of the
    original prompt, and the position of the first decoded token; as changed by `in_reading_order`.
    look_ahead_tokens: int32 [<= look_ahead], the speculator's own continuation, which are the first drafts.
    """

    token_ids: Int32Array
    positions: Int32Array
    context_length: int
    look_ahead_tokens: Int32Array = field(default_factory=no_numbers)
    session: SessionHandle | None = None

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1 or self.positions.shape != self.token_ids.shape:
            raise ValueError(
                f"a kept prompt needs one position per token, not {self.positions.shape} for {self.token_ids.shape}"
            )
        if not self.token_ids.size:
            raise ValueError("a kept prompt needs at least one token")
        ordered = self.positions if self.is_ascending else np.sort(self.positions)
        if ordered[0] < 0 or ordered[-1] >= self.context_length or not is_ascending(ordered):
            raise ValueError(f"kept positions must be distinct and inside [0, {self.context_length})")

    @classmethod
    def dense(cls, token_ids: npt.ArrayLike) -> "KeptPrompt":
        """The whole prompt."""
        ids = np.asarray(token_ids, np.int32)
        return cls(ids, np.arange(ids.size, dtype=np.int32), int(ids.size))

    def extended(self, token_ids: npt.ArrayLike) -> "KeptPrompt":
        """This prompt with `token_ids` after it, at the positions from context_length on."""
        ids, begin = np.asarray(token_ids, np.int32), self.context_length
        end = begin + int(ids.size)
        positions = np.concatenate([self.positions, np.arange(begin, end, dtype=np.int32)])
        return replace(self, token_ids=np.concatenate([self.token_ids, ids]), positions=positions, context_length=end)

    def in_reading_order(self, limit: int) -> "KeptPrompt":
        """This prompt with positions that ascend in the order in which the tokens are read.

        Models misread a late unit, which is read after text of higher positions. So each run of such tokens takes the
        positions of what follows it, and all that follows stands so many positions higher. A prefix keeps its positions
        when text is appended, so a cache finds it again. A prompt that would need more than `limit` positions, or that
        ends with such a run, is returned as it is.
        """
        late = self.positions < np.maximum.accumulate(self.positions)
        moved = np.cumsum(late)
        if not moved[-1] or late[-1] or self.context_length + moved[-1] > limit:
            return self
        in_order = np.flatnonzero(~late)
        following = in_order[np.searchsorted(in_order, np.arange(late.size))]
        positions = self.positions[following] + moved - late
        return replace(self, positions=positions.astype(np.int32), context_length=self.context_length + int(moved[-1]))

    @property
    def is_ascending(self) -> bool:
        """Whether the tokens stand in the order of the text."""
        return is_ascending(self.positions)

    @property
    def is_dense(self) -> bool:
        """Whether the positions are 0, 1, ..., M - 1. The whole prompt in another order is not dense."""
        return int(self.token_ids.size) == self.context_length and self.is_ascending


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """trace: headers that continue the request's trace (traceparent, tracestate, x-request-id), if it is traced.
    affinity: names the prompt's prefix; requests with the same name prefer the same replicas. Empty: no preference.
    timeout_ms: until the request's deadline, when the message is sent.
    """

    trace: Mapping[str, str] | None = None
    affinity: str = ""
    timeout_ms: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SelectRequest:
    """Router to speculator: choose the tokens to keep of token_ids, int32 [M]. return_importance: of all tokens.
    cache_salt: prompts with different salts share no cached KV. decode: None keeps no session for drafting.
    """

    request_id: str
    token_ids: Int32Array
    options: SelectionOptions = field(default_factory=SelectionOptions)
    layout: TextLayout = field(default_factory=TextLayout)
    return_importance: bool = False
    cache_salt: str | None = None
    decode: DecodeOptions | None = None
    envelope: Envelope = field(default_factory=Envelope)

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1:
            raise ValueError(f"token_ids must be [M], not {list(self.token_ids.shape)}")

    @property
    def size(self) -> int:
        """M, the number of the prompt's tokens."""
        return int(self.token_ids.size)

    @property
    def droppable(self) -> npt.NDArray[np.bool_]:
        """The tokens that a selection may drop, bool [M]."""
        return ~self.layout.fixed(self.size, self.options.protect_last)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Speculator to router: the kept prompt, and how it was selected.

    coverage: the kept share of the total importance. importance: float32 [M], if the request asked for it. timings: by
    part: queue, speculate, select. reused_tokens: leading kept tokens that an earlier kept prompt begins with.
    cached_tokens: as in Scores. unit_scores: float32 [U], the mean importance of each unit
    (`TextLayout.unit_starts`), if known.
    """

    kept: KeptPrompt
    coverage: float
    importance: Float32Array | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    reused_tokens: int = 0
    cached_tokens: int = 0
    unit_scores: Float32Array | None = None

    @property
    def late(self) -> npt.NDArray[np.bool_]:
        """Which kept tokens belong to late units, bool [K]: not reused, and after a token of a higher position."""
        late: npt.NDArray[np.bool_] = self.kept.positions < np.maximum.accumulate(self.kept.positions)
        late[: self.reused_tokens] = False
        return late


CUMULATIVE, DELTA, FINAL_ONLY = 0, 1, 2
"""Values of vLLM's RequestOutputKind: each output holds all so far, only what is new, or comes once at the end."""

READ_ONLY: Mapping[str, Any] = {"max_tokens": 1, "temperature": 0.0, "detokenize": False}
"""Sampling of a request whose prompt is to be read. An engine makes at least one token."""

ADAPTER = "adapter"
"""In `GenerateRequest.engine_args`: the name of the LoRA adapter that answers. Without it, the target itself does."""


@dataclass(frozen=True, slots=True, eq=False)
class GenerateRequest:
    """Router to target: decode from this kept prompt.

    sampling: the fields of vLLM's SamplingParams that differ from their defaults, as builtins. engine_args: ADAPTER,
    and further keyword arguments of vLLM's `AsyncLLM.generate` (trace_headers, reasoning_ended, ...).
    prefill_only, kv_blocks: the two legs of a split target. The prefill leg returns where the KV blocks are
    (`GenerateOutput.kv_blocks`), the decode leg gets them and produces the answer.
    answered: the last `answered` tokens of the prompt are the start of the answer, which the client already has. They
    count for sampling and for max_tokens, and the outputs hold only what follows them.
    scored: the first output has the log probabilities of so many last tokens of a dense prompt. Unlike for
    `prompt_logprobs`, the prefix cache is used.
    """

    request_id: str
    prompt: KeptPrompt
    sampling: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    cache_salt: str | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    prefill_only: bool = False
    kv_blocks: Mapping[str, Any] | None = None
    envelope: Envelope = field(default_factory=Envelope)
    answered: int = 0
    scored: int = 0

    def __post_init__(self) -> None:
        for count in (self.answered, self.scored):
            if not 0 <= count < self.prompt.token_ids.size:
                raise ValueError(f"{count} tokens of an answer are not in a prompt of {self.prompt.token_ids.size}")
        begin = self.prompt.context_length - self.answered
        if self.answered and (self.prompt.positions[-self.answered :] != begin + np.arange(self.answered)).any():
            raise ValueError("the tokens of the answer must have the last positions of the prompt")

    def prompt_and_answer(self) -> tuple[KeptPrompt, Int32Array]:
        """The prompt without the start of the answer, and the start of the answer."""
        ids, positions = self.prompt.token_ids, self.prompt.positions
        begin, context = ids.size - self.answered, self.prompt.context_length - self.answered
        prompt = replace(self.prompt, token_ids=ids[:begin], positions=positions[:begin], context_length=context)
        return prompt, ids[begin:]


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprob:
    """One candidate at one position. rank: 1 is the most likely."""

    token_id: int
    logprob: float
    rank: int | None = None
    decoded: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One of the `n` answers: its new part (sampling output_kind DELTA) or all of it so far (CUMULATIVE, FINAL_ONLY).
    logprobs: the candidates for each new token, the sampled token first. finish_reason: stop, length, abort, error.
    stop_reason: the stop string or token id, if any.
    """

    index: int
    text: str
    token_ids: Int32Array
    logprobs: list[list[TokenLogprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GenerateOutput:
    """Target to router: one output of a stream; the last one is `finished`.

    prompt_logprobs: per prompt token (None for the first); or per `scored` token, None if not all were computed.
    cached_tokens: prompt tokens whose KV came from the prefix cache or from another engine. created_tokens: those that
    were computed and written to the prefix cache. timings: by part (queue, prefill), on the first output.
    kv_blocks: on the last output of a prefill leg. An unfinished output with prompt_logprobs alone is a piece of the
    next one (`kv_transfer.reply_pieces`).
    """

    completions: list[Completion]
    finished: bool
    cached_tokens: int = 0
    prompt_logprobs: list[list[TokenLogprob] | None] | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    kv_blocks: Mapping[str, Any] | None = None
    created_tokens: int = 0
