"""The small interface that every speculator engine implements: vLLM, transformers (the oracle) and a mock."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch

from kv_transfer.messages import Float32Array, Int32Array, KeptPrompt, ModelInfo, SelectionOptions


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """One prompt, read and scored.

    importance: float32 [M] on CPU. look_ahead_tokens: the greedily decoded tokens, at most `look_ahead`, an EOS
    included and nothing after it. timings: milliseconds by part (queue, speculate).
    """

    importance: torch.Tensor
    look_ahead_tokens: list[int]
    timings: Mapping[str, float] = field(default_factory=dict)


def _no_ids() -> Int32Array:
    return np.empty(0, np.int32)


def _no_probs() -> Float32Array:
    return np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """A continuation. tokens: int32 [k]. q_ids, q_probs: as in `kv_transfer.drafts.Draft`, empty for one-hot.

    alternative_ids, alternative_probs: [k * b], row-major, where they were asked for (`BranchingEngine`): the b
    likeliest tokens in each draft's place, likeliest first, with their probabilities at temperature 1.
    """

    tokens: Int32Array
    q_ids: Int32Array = field(default_factory=_no_ids)
    q_probs: Float32Array = field(default_factory=_no_probs)
    alternative_ids: Int32Array = field(default_factory=_no_ids)
    alternative_probs: Float32Array = field(default_factory=_no_probs)


class SpeculatorEngine(Protocol):
    """Reads prompts and scores their tokens. Concurrent calls are batched by the engine.

    Cancelling the task that awaits `score` aborts the request in the engine.
    """

    info: ModelInfo
    supports_branches: bool

    async def score(
        self,
        request_id: str,
        token_ids: Int32Array,
        options: SelectionOptions,
        *,
        cache_salt: str | None = None,
        keep_session: bool = False,
    ) -> Scores:
        """Prefill `token_ids` [M], decode `options.look_ahead` tokens greedily, score the M prompt tokens.

        cache_salt: prompts of different salts share no cached KV. keep_session: keep the prompt's KV as the session
        `request_id`, for `draft`.
        Raises InvalidRequestError if M + look_ahead exceeds `info.max_model_len`, EngineUnavailableError if the
        engine is dead.
        """
        ...

    async def open_session(self, session: str, prompt: KeptPrompt) -> None:
        """A session over a kept prompt, read at its original positions (`draft_context: kept`, or a lost session)."""
        ...

    async def draft(
        self, session: str, answer: Int32Array, count: int, *, temperature: float = 0.0, top_m: int = 0
    ) -> Drafted:
        """Continue the session's prompt plus `answer` by at most `count` tokens; fewer at the model's last position.

        answer: int32 [A], the whole answer that the target has accepted so far, at positions M, M + 1, ...; KV that the
        session holds for other tokens is rolled back. temperature 0 drafts greedily and top_m must be 0; else each
        token is sampled from the drafter's top `top_m` at that temperature, renormalised, and q comes back.
        Calls for several sessions are batched; one session has one call at a time. Cancelling the task that awaits the
        call stops it before its next forward and leaves the session usable.
        Raises SessionLostError if the session was evicted or never opened.
        """
        ...

    async def close_session(self, session: str) -> None:
        """Free the session's KV; does nothing for a session that is not there."""
        ...

    async def stats(self) -> dict[str, Any]:
        """Counts since the start, by the names of the speculator's metrics; {} for an engine that keeps none."""
        return {}

    async def check_health(self) -> None:
        """Raise EngineUnavailableError if the engine cannot serve."""
        ...

    def close(self) -> None:
        """Stop the engine's processes and free its memory; idempotent."""
        ...


class BranchingEngine(SpeculatorEngine, Protocol):
    """What `draft_ahead: branches` needs: an engine that drafts for several answers of one session at once."""

    supports_branches: bool = True

    async def draft(
        self,
        session: str,
        answer: Int32Array,
        count: int,
        *,
        temperature: float = 0.0,
        top_m: int = 0,
        alternatives: int = 0,
    ) -> Drafted:
        """As `SpeculatorEngine.draft`. alternatives: how many of the likeliest tokens come with each draft, b."""
        [drafted] = await self.draft_many(
            session, [answer], count, temperature=temperature, top_m=top_m, alternatives=alternatives
        )
        return drafted

    @abstractmethod
    async def draft_many(
        self,
        session: str,
        answers: list[Int32Array],
        count: int,
        *,
        temperature: float = 0.0,
        top_m: int = 0,
        alternatives: int = 0,
    ) -> list[Drafted]:
        """`draft` for several answers of one session at once; they differ in their last tokens only.

        Each continuation is sampled by itself. Counts as the session's one call.
        """
        ...


def supports_branches(engine: SpeculatorEngine) -> TypeGuard[BranchingEngine]:
    """Whether the engine drafts several continuations of one session at once."""
    return engine.supports_branches
