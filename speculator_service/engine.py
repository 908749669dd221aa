"""The small interface that every speculator engine implements: vLLM, and named classes; and what starts one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kv_transfer.arrays import Float32Array, Int32Array, Span
from kv_transfer.drafts import Drafted
from kv_transfer.engine import Engine
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from skim_common.engine_options import named_engine
from skim_common.errors import InvalidRequestError, SessionLostError

MAX_TOP = 512
"""Maximum number of tokens that a draft is sampled from."""

NO_SESSIONS = "this engine keeps no drafting sessions"


class TooLongError(InvalidRequestError):
    """The text has more of the speculator's own tokens than it reads."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRequest:
    """token_ids: int32 [M]. cache_salt: prompts with different salts share no cached KV. keep_session: keep the
    prompt's KV for `draft`, as session `request_id`. questions: half-open token spans, whose queries retrieval heads
    use (`scoring.queries`).
    """

    request_id: str
    token_ids: Int32Array
    options: SelectionOptions
    cache_salt: str | None = None
    keep_session: bool = False
    questions: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """importance: float32 [M]. look_ahead_tokens: at most `options.tokens_ahead` greedily decoded tokens, up to and
    including an EOS. timings: milliseconds by part (queue, speculate). cached_tokens: prompt tokens, in the engine's
    own tokenizer, whose KV came from its prefix cache.
    """

    importance: Float32Array
    look_ahead_tokens: list[int]
    timings: Mapping[str, float] = field(default_factory=dict)
    cached_tokens: int = 0


class SpeculatorEngine(Engine, Protocol):
    """Reads prompts and scores their tokens. Concurrent calls are batched by the engine; cancelling one aborts it.

    supports_drafts: whether drafting is worth its time; if not, no session is kept, and the methods of sessions may be
    left out. max_sessions, max_session_tokens: how many sessions it can draft for at a time, and their tokens together.
    shares_device: what it reads slows the target, as on CPUs.
    """

    supports_drafts: bool = True
    max_sessions: float = math.inf
    max_session_tokens: float = math.inf
    shares_device: bool = False

    async def score(self, request: ScoreRequest) -> Scores:
        """Prefill the prompt, decode `options.tokens_ahead` tokens greedily, score the M prompt tokens.

        Raises InvalidRequestError if M + tokens_ahead exceeds `info.max_model_len`, TooLongError if the text does so in
        an own tokenizer, and EngineUnavailableError if the engine is dead.
        """
        ...

    async def open_session(self, session: str, prompt: KeptPrompt, *, cache_salt: str | None = None) -> None:
        """Open a session over a kept prompt, prefilled at its original positions. cache_salt: as in ScoreRequest."""
        raise SessionLostError(NO_SESSIONS)

    async def draft(
        self, session: str, answer: Int32Array, count: int, *, temperature: float = 0.0, top_m: int = 0
    ) -> Drafted:
        """Continue the session's prompt plus `answer` by at most `count` tokens; fewer at the model's last position.

        answer: int32 [A], all tokens that the target has accepted, at positions M, M + 1, ...; the KV of other tokens
        is rolled back. With temperature 0 drafting is greedy, and top_m must be 0. Otherwise each token is sampled from
        the drafter's top `top_m` at that temperature, renormalised, and q is returned. A session has one call at a
        time; cancelling it stops it before its next forward. Raises SessionLostError for a session that is not here.
        """
        raise SessionLostError(NO_SESSIONS)

    async def close_session(self, session: str) -> None:
        """Free the session's KV; does nothing if there is no such session."""
        return


NAMED = {
    "vllm": "speculator_service.vllm_backend.engine:VllmSpeculator",
    "mock": "benchmarks.mock_engines.speculator:MockSpeculator",
}


def create_engine(
    kind: str, model: str, *, tensor_parallel: int = 1, options: Mapping[str, Any] | None = None
) -> SpeculatorEngine:
    """Start the engine `kind`, as `named_engine`. Raises ModelError for a model folder that cannot be used."""
    engine: SpeculatorEngine = named_engine(kind, NAMED, SpeculatorEngine, model, tensor_parallel, options or {})
    return engine
