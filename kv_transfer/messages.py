"""The messages that cross between router, speculator pool and target pool.

Plain frozen data: no behaviour beyond checking itself. `kv_transfer.codec` turns each into bytes and back.
Token ids and positions are int32 numpy arrays; times are milliseconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
DraftAhead = Literal["off", "chain", "branches"]

MAX_LOOK_AHEAD = 64


def _odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("must be odd, so that the pooled score keeps its place")
    return value


class SelectionOptions(BaseModel):
    """How the speculator scores a prompt and what it keeps (Speculative Prefill, arXiv 2502.02789, section 3).

    One definition serves the request option `speculative_prefill`, the `selection:` section of a config file and the
    wire. Unknown fields, wrong types and values out of range are refused with the field's name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    keep_rate: float = Field(0.2, gt=0, le=1, description="share of the prompt's chunks to keep, in (0, 1]")
    coverage: float | None = Field(
        None, gt=0, le=1, description="keep the smallest set with this share of the importance instead of keep_rate"
    )
    look_ahead: int = Field(8, ge=0, le=MAX_LOOK_AHEAD, description="tokens decoded ahead whose queries score too")
    chunk_size: int = Field(32, ge=1, le=4096, description="tokens per chunk")
    pool_kernel: Annotated[int, AfterValidator(_odd)] = Field(
        13, ge=1, le=1023, description="width of the average pooling along the prompt; odd, 1 switches it off"
    )
    layers: Literal["all", "last4", "last1"] = Field("all", description="speculator layers whose attention counts")
    aggregation: Literal["max", "head_max_layer_mean"] = Field(
        "max", description="over heads and layers: the maximum (the paper), or maximum over heads, mean over layers"
    )
    granularity: Literal["chunk", "token"] = Field("chunk", description="what is kept or dropped as one")
    protect_last: int = Field(32, ge=1, le=4096, description="tokens at the end of the prompt that are always kept")


class DecodeOptions(BaseModel):
    """How the target's decode is speculated (exact speculative decoding, arXiv 2211.17192 and 2302.01318).

    One definition serves the request option `speculative_decode`, the `decode:` section of a config file and the wire.
    `remote`: the speculator that read the prompt drafts. All other methods are vLLM's own and run in the target.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    method: Literal["remote", "ngram", "suffix", "draft_model", "medusa", "eagle", "eagle3", "mtp", "none"] = Field(
        "remote", description="who drafts; a request may choose the deployment's method or none"
    )
    max_draft_tokens: int = Field(4, ge=1, le=16, description="most drafts per verification, K")
    adaptive: bool = Field(True, description="choose K per request from measured acceptance and costs")
    draft_ahead: DraftAhead = Field("chain", description="draft on while the target verifies")
    draft_context: Literal["full", "kept"] = Field("full", description="what the drafter reads: all or what was kept")
    q_top: int = Field(32, ge=1, le=512, description="pairs of the drafter's distribution that travel per draft")


@dataclass(frozen=True, slots=True, eq=False)
class SessionHandle:
    """A prompt's KV cache on one speculator replica, kept for drafting.

    address: host:port of the replica's draft channel. id: the session on that replica.
    """

    address: str
    id: str


@dataclass(frozen=True, slots=True, eq=False)
class KeptPrompt:
    """What is left of a prompt, with the places it came from.

    token_ids: int32 [K]. positions: int32 [K], strictly ascending, in [0, context_length).
    context_length: tokens M of the original prompt; the first decoded token sits at position M.
    look_ahead_tokens: int32 [<= look_ahead], what the speculator would answer: the first drafts.
    A dense prompt is the case K == M.
    """

    token_ids: Int32Array
    positions: Int32Array
    context_length: int
    look_ahead_tokens: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    session: SessionHandle | None = None

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1 or self.positions.shape != self.token_ids.shape:
            raise ValueError(
                f"a kept prompt needs one position per token, not {self.positions.shape} for {self.token_ids.shape}"
            )
        if not self.token_ids.size:
            raise ValueError("a kept prompt needs at least one token")
        if self.positions[0] < 0 or self.positions[-1] >= self.context_length or (np.diff(self.positions) <= 0).any():
            raise ValueError(f"kept positions must rise strictly inside [0, {self.context_length})")

    @classmethod
    def dense(cls, token_ids: npt.ArrayLike) -> "KeptPrompt":
        """The whole prompt, nothing dropped."""
        ids = np.asarray(token_ids, np.int32)
        return cls(ids, np.arange(ids.size, dtype=np.int32), int(ids.size))

    @property
    def is_dense(self) -> bool:
        return int(self.token_ids.size) == self.context_length


@dataclass(frozen=True, slots=True, eq=False)
class SelectRequest:
    """Router to speculator: score this prompt and choose what to keep.

    token_ids: int32 [M]. protected_spans: int32 [P, 2], half-open token ranges that are kept whatever their score.
    return_importance: send the M token scores back too (the explain view and `skim select` want them).
    cache_salt: prompts of different salts share no cached KV (vLLM's prefix-cache isolation).
    decode: keep a session and draft by these options; None keeps nothing.
    trace: headers that continue the request's trace (traceparent, tracestate, x-request-id); None is not traced.
    """

    request_id: str
    token_ids: Int32Array
    options: SelectionOptions = field(default_factory=SelectionOptions)
    protected_spans: Int32Array = field(default_factory=lambda: np.empty((0, 2), np.int32))
    return_importance: bool = False
    cache_salt: str | None = None
    decode: DecodeOptions | None = None
    trace: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1:
            raise ValueError(f"token_ids must be [M], not {list(self.token_ids.shape)}")
        if self.protected_spans.ndim != 2 or self.protected_spans.shape[1] != 2:
            raise ValueError(f"protected_spans must be [P, 2], not {list(self.protected_spans.shape)}")


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Speculator to router: the kept prompt and how it came about.

    importance: float32 [M], or None unless asked for. coverage: share of the importance mass that was kept, 0 to 1.
    timings: milliseconds by part: queue, speculate, select.
    """

    kept: KeptPrompt
    coverage: float
    importance: Float32Array | None = None
    timings: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.coverage):
            raise ValueError(f"coverage must be a number, not {self.coverage}")
        if self.importance is not None and self.importance.shape != (self.kept.context_length,):
            raise ValueError(
                f"importance needs one score for each of {self.kept.context_length} tokens, not"
                f" {list(self.importance.shape)}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class GenerateRequest:
    """Router to target: decode from this kept prompt.

    sampling: the fields of vLLM's SamplingParams that differ from their defaults, as builtins. Engines other than vLLM
    read the few that they know and refuse the rest. cache_salt: as in SelectRequest. engine_args: further keyword
    arguments of vLLM's `AsyncLLM.generate` (trace_headers, reasoning_ended, ...); other engines ignore them.
    prefill_only, kv_blocks: the legs of a split target. The first prefills and tells where the KV lies
    (`GenerateOutput.kv_blocks`), the second takes it from there and decodes; its answer counts. trace: as in
    SelectRequest.
    """

    request_id: str
    prompt: KeptPrompt
    sampling: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    cache_salt: str | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    decode: DecodeOptions = field(default_factory=lambda: DecodeOptions())
    prefill_only: bool = False
    kv_blocks: Mapping[str, Any] | None = None
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprob:
    """One candidate at one position: id, natural-log probability, rank (1 is the likeliest), decoded text."""

    token_id: int
    logprob: float
    rank: int | None = None
    decoded: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What one of the `n` answers gained (sampling output_kind DELTA) or is so far (CUMULATIVE, FINAL_ONLY).

    logprobs: per new token, its candidates; the sampled token comes first. finish_reason: stop, length, abort, error.
    stop_reason: the stop string or token id that ended it, if one did.
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
    """Target to router: one step of a stream. `finished` is true on the last one.

    prompt_logprobs: per prompt token (None for the first), only for dense requests that asked.
    cached_tokens: prompt tokens that came from the prefix cache, or whose KV another engine made. timings: milliseconds
    by part (queue, prefill), on the first output. kv_blocks: where the prompt's KV lies, at the end of a prefill leg.
    """

    completions: list[Completion]
    finished: bool
    cached_tokens: int = 0
    prompt_logprobs: list[list[TokenLogprob] | None] | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    kv_blocks: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelInfo:
    """What a pool says of its model at start, so that the router can refuse a pair that does not fit.

    fingerprint: hex SHA-256 over the tokenizer's whole vocabulary. max_model_len: longest prompt plus answer that the
    engine takes. max_position: positions the model was made for (`max_position_embeddings`).
    """

    path: str
    architecture: str
    vocab_size: int
    fingerprint: str
    max_model_len: int
    max_position: int
    engine: str
