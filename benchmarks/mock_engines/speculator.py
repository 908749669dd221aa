"""A speculator without a model: deterministic scores and configurable latencies, to test the code around an engine."""

import asyncio
from dataclasses import replace

import numpy as np
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from benchmarks.mock_engines.compute import MockCompute
from kv_transfer.arrays import Int32Array
from kv_transfer.drafts import Drafted
from kv_transfer.limits import check_speculator_length
from kv_transfer.messages import KeptPrompt
from skim_common.errors import EngineUnavailableError, SessionLostError
from skim_common.models.costs import LINEAR
from skim_common.models.info import inspect_model
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine
from speculator_service.scoring.queries import question_rows

_KNUTH = np.uint64(2654435761)  # multiplicative hashing, The Art of Computer Programming, 6.4


class MockSpeculator(SpeculatorEngine):
    """Scores a token by a hash of its id and chooses the next token by the same hash. Reads config and tokenizer only.

    started, aborted, running: calls of `score` that began, were cancelled, or run now. sessions: for each id, the
    context length and the last token of the prompt.
    """

    def __init__(
        self,
        model: str,
        *,
        latency_ms: float = 0.0,
        ms_per_token: float = 0.0,
        ms_per_look_ahead: float = 0.0,
        ms_per_draft: float = 0.0,
        cache_tokens: int = 0,
        block_size: int = 32,
        one_at_a_time: bool = False,
        fail_every: int = 0,
        max_model_len: int | None = None,
        head_profile: bool = False,
        max_sessions: int | None = None,
        seed: int = 0,
        tensor_parallel: int = 1,
    ) -> None:
        """Scoring takes latency_ms, ms_per_token for each computed prompt token and ms_per_look_ahead for each
        look-ahead token; drafting takes ms_per_draft * count.

        cache_tokens: capacity of the prefix cache, in blocks of block_size tokens; 0 caches nothing. It holds prompts
        and look-ahead tokens, not drafts. one_at_a_time: prompts wait for each other.
        fail_every n: every nth call of `score` raises EngineUnavailableError. head_profile: it can read in windows.
        max_sessions: as in SpeculatorEngine. seed: for sampled drafts. tensor_parallel: without effect.
        """
        info = inspect_model(model, engine="mock", max_model_len=max_model_len)
        self.info = replace(info, read_cost=LINEAR, cache_tokens=cache_tokens, has_head_profile=head_profile)
        self.started = self.aborted = self.running = 0
        self.compute = MockCompute(latency_ms, ms_per_token, cache_tokens, block_size, one_at_a_time)
        self._ms_per_look_ahead = ms_per_look_ahead
        self._fail_every = fail_every
        self._ms_per_draft = ms_per_draft
        if max_sessions is not None:
            self.max_sessions = max_sessions
        self._closed = False
        self._random = np.random.default_rng(seed)
        self.sessions: dict[str, tuple[int, int]] = {}

    async def score(self, request: ScoreRequest) -> Scores:
        """As `SpeculatorEngine.score`: importance depends on token ids only, look-ahead tokens on the last id.

        The tokens of the question are computed although they are cached, if heads need their queries.
        """
        await self.check_health()
        token_ids, options = request.token_ids, request.options
        check_speculator_length(int(token_ids.size), options.tokens_ahead, self.info)
        self.started += 1
        if self._fail_every and self.started % self._fail_every == 0:
            raise EngineUnavailableError(f"the mock speculator fails every {self._fail_every} calls, as it was told to")
        self.running += 1
        try:
            look_ahead_ms = self._ms_per_look_ahead * options.tokens_ahead
            by_heads = options.scoring == "heads"
            rows = question_rows(options, int(token_ids.size), request.questions) if by_heads else ()
            done = await self.compute.prefill(
                token_ids, _in_order(token_ids), request.cache_salt, look_ahead_ms, rows[0][0] if rows else None
            )
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1
        tokens = [int(token_ids[-1])]
        for _ in range(options.tokens_ahead):
            tokens.append(self.likeliest(tokens[-1]))
        read = np.append(token_ids, np.array(tokens[1:-1], np.int32))  # the last token's KV is not computed
        self.compute.cache.store(read, _in_order(read), request.cache_salt)
        if request.keep_session:
            self.sessions[request.request_id] = (int(token_ids.size), int(token_ids[-1]))
        timings = {"queue": done.queue_ms, "speculate": done.ms}
        return Scores(_hash(token_ids), tokens[1:], timings, done.cached_tokens)

    def likeliest(self, token: int) -> int:
        """The most probable token after `token`. Each following id has half the probability of the one before it."""
        return int(_hash(np.array([token]))[0] * self.info.vocab_size)

    async def open_session(self, session: str, prompt: KeptPrompt, *, cache_salt: str | None = None) -> None:
        await self.check_health()
        check_speculator_length(prompt.context_length, 0, self.info)
        await self.compute.prefill(prompt.token_ids, prompt.positions, cache_salt)
        self.sessions[session] = (prompt.context_length, int(prompt.token_ids[-1]))

    async def draft(
        self, session: str, answer: Int32Array, count: int, *, temperature: float = 0.0, top_m: int = 0
    ) -> Drafted:
        await self.check_health()
        if session not in self.sessions:
            raise SessionLostError(f"session {session} is not on this mock speculator")
        await asyncio.sleep(self._ms_per_draft * count / 1e3)
        return self._continue(session, answer, count, temperature, top_m)

    def _continue(self, session: str, answer: Int32Array, count: int, temperature: float, top_m: int) -> Drafted:
        context_length, last = self.sessions[session]
        count = max(0, min(count, self.info.max_model_len - context_length - int(answer.size)))
        tokens = [int(answer[-1]) if answer.size else last]
        rows = np.empty((count, max(top_m, 1)), np.int32)
        halves = np.float32(0.5) ** np.arange(1, rows.shape[1] + 1, dtype=np.float32)
        weights = halves[:top_m] ** np.float32(1 / temperature) if temperature else halves[:0]
        q = weights / weights.sum() if top_m else weights
        for row in rows:
            row[:] = (self.likeliest(tokens[-1]) + np.arange(row.size)) % self.info.vocab_size
            tokens.append(int(self._random.choice(row[:top_m], p=q / q.sum())) if top_m else int(row[0]))
        return Drafted(np.array(tokens[1:], np.int32), rows[:, :top_m].ravel(), np.tile(q, count))

    async def close_session(self, session: str) -> None:
        self.sessions.pop(session, None)

    async def stats(self) -> dict[str, int]:
        return {"started": self.started, "running": self.running, "aborted": self.aborted}

    def metric_families(self) -> list[Metric]:
        """The requests begun, which tell what each replica of a deployment has taken."""
        return [CounterMetricFamily("skim_speculator_started", "requests", self.started)]

    async def check_health(self) -> None:
        if self._closed:
            raise EngineUnavailableError("the mock speculator is closed")

    def close(self) -> None:
        self._closed = True


def _in_order(token_ids: Int32Array) -> Int32Array:
    return np.arange(token_ids.size, dtype=np.int32)


def _hash(ids: np.ndarray) -> np.ndarray:
    """A float32 in [0, 1) for each id."""
    top = (ids.astype(np.uint64) + np.uint64(1)) * _KNUTH % np.uint64(2**32) >> np.uint64(8)
    return top.astype(np.float32) / np.float32(2**24)
