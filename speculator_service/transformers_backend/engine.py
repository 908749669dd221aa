"""A speculator on transformers, for machines without vLLM: one prompt at a time, on a worker thread."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kv_transfer.messages import Int32Array, KeptPrompt
from kv_transfer.options import SelectionOptions
from skim_common.errors import EngineUnavailableError, ModelError, SkimError
from skim_common.models.info import check_speculator, inspect_model
from skim_common.models.source import local_folder
from speculator_service.engine import BranchingEngine, Drafted, Scores
from speculator_service.limits import check_ids, check_length
from speculator_service.scoring.importance import Aggregate, layer_scores, scored_layers
from speculator_service.scoring.score_queries import ScoreQueries
from speculator_service.transformers_backend.sessions import CacheSession, CacheSessionTable

PREFILL_TOKENS = 2048
"""Prompt tokens per forward. A cancelled request stops between two forwards."""

Queries = dict[int, tuple[torch.Tensor, float]]
"""For each layer: some tokens' queries [S, H, D] after rotary embedding, and the factor on q·k."""

Result = TypeVar("Result")

_ATTENTION = "skim_sdpa_with_queries"


def _attend(
    module: Any,
    query: torch.Tensor,
    *args: Any,
    skim_queries: Queries | None = None,
    skim_rows: Sequence[int] = (),
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' SDPA attention; also records the queries of the tokens `skim_rows`. query: [1, H, tokens, D]."""
    if skim_queries is not None:
        skim_queries[module.layer_idx] = (query[0, :, list(skim_rows)].transpose(0, 1), kwargs["scaling"])
    return sdpa_attention_forward(module, query, *args, **kwargs)


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


class TransformersSpeculator(BranchingEngine):
    """Captures each step's queries inside the attention function and reads the keys from the KV cache."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        max_model_len: int | None = None,
        max_sessions: int = 64,
        seed: int | None = None,
    ) -> None:
        """max_sessions: limit for the sessions kept at once. seed: for sampled drafts; random by default.

        Raises ModelError if the folder cannot be loaded or the model's attention cannot be scored.
        """
        self.info = inspect_model(model, engine="transformers", max_model_len=max_model_len)
        check_speculator(model, engine="transformers", max_model_len=max_model_len)
        folder = local_folder(model, weights=True)
        try:
            loaded = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=_ATTENTION, local_files_only=True
            )
            self._model = loaded.to(device).eval()
        except Exception as e:  # transformers and torch raise many kinds
            raise ModelError(f"model {model} cannot be loaded by transformers: {' '.join(str(e).split())[:200]}") from e
        eos = self._model.generation_config.eos_token_id
        self.eos_token_ids = frozenset([eos] if isinstance(eos, int) else eos or ())
        config = self._model.config.get_text_config()
        self._num_layers, self._embeddings = config.num_hidden_layers, config.vocab_size
        self._sessions = CacheSessionTable(max_sessions)  # used on the worker thread only
        self._seeds = random.Random(seed)
        self._closed = threading.Event()
        # One worker thread: requests queue here, and a cancelled request in the queue never starts.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="speculator")
        if len(self._forward([0], DynamicCache(), rows=[0])[1]) != self._num_layers:
            raise ModelError(f"model {model}: transformers does not show the queries of {self.info.architecture}")

    async def score(
        self,
        request_id: str,
        token_ids: Int32Array,
        options: SelectionOptions,
        *,
        cache_salt: str | None = None,
        keep_session: bool = False,
        question: tuple[int, int] | None = None,
    ) -> Scores:
        """As `SpeculatorEngine.score`; a cancelled call stops before its next forward."""
        await self.check_health()
        check_length(int(token_ids.size), options.tokens_ahead, self.info)
        submitted = perf_counter()
        session = request_id if keep_session else None
        needed = ScoreQueries.of(options, int(token_ids.size), question)
        return await self._on_worker(lambda c: self._score(token_ids.tolist(), options, needed, submitted, session, c))

    async def open_session(self, session: str, prompt: KeptPrompt, *, cache_salt: str | None = None) -> None:
        """As `SpeculatorEngine.open_session`. Raises InvalidRequestError if the prompt is longer than the model's."""
        await self.check_health()
        check_length(prompt.context_length, 0, self.info)
        check_ids(prompt.token_ids, self._embeddings)
        await self._on_worker(lambda c: self._open(session, prompt, c))

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
        """As `BranchingEngine.draft_many`; all answers share the same forwards."""
        await self.check_health()
        for answer in answers:
            check_ids(answer, self._embeddings)
        options = (temperature, top_m, alternatives)
        return await self._on_worker(lambda c: self._draft(session, answers, count, options, c))

    async def close_session(self, session: str) -> None:
        """As `SpeculatorEngine.close_session`."""
        if not self._closed.is_set():
            await self._on_worker(lambda _: self._sessions.remove(session))

    async def check_health(self) -> None:
        if self._closed.is_set():
            raise EngineUnavailableError("the transformers speculator is closed")

    def close(self) -> None:
        """Running and queued requests end with EngineUnavailableError. Waits until the current forward has ended."""
        self._closed.set()
        self._worker.shutdown()
        self._model = None

    async def _on_worker(self, work: Callable[[threading.Event], Result]) -> Result:
        """Run `work` on the worker thread. The event passed to it is set if the caller is cancelled."""
        cancelled = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work, cancelled)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @torch.inference_mode()
    def _score(
        self,
        token_ids: list[int],
        options: SelectionOptions,
        needed: ScoreQueries,
        submitted: float,
        session: str | None,
        cancelled: threading.Event,
    ) -> Scores:
        """Serve one request. Runs on the worker thread."""
        start = perf_counter()
        cache = DynamicCache()
        captured = []
        for first in range(0, len(token_ids), PREFILL_TOKENS):
            part = token_ids[first : first + PREFILL_TOKENS]
            # The first step is the query of the last prompt token.
            rows = [row - first for row in (*needed.rows, *needed.steps[:1]) if first <= row < first + len(part)]
            token, queries = self._forward(part, cache, cancelled, rows)
            captured.append(queries)
        tokens: list[int] = []
        while len(tokens) < options.tokens_ahead:
            tokens.append(token)
            if token in self.eos_token_ids:
                break
            token, queries = self._forward([token], cache, cancelled, [0])
            captured.append(queries)
        importance = self._importance(captured, needed.visible(len(token_ids)), cache, len(token_ids), options)
        if session is not None:
            read = tokens[: cache.get_seq_length() - len(token_ids)]
            self._keep(session, cache, [token_ids[-1], *read], len(token_ids) - 1, len(token_ids))
        timings = {"queue": (start - submitted) * 1e3, "speculate": (perf_counter() - start) * 1e3}
        return Scores(importance, tokens, timings)

    @torch.inference_mode()
    def _open(self, session: str, prompt: KeptPrompt, cancelled: threading.Event) -> None:
        cache = DynamicCache()
        for first in range(0, prompt.token_ids.size, PREFILL_TOKENS):
            self._check(cancelled)
            part = slice(first, first + PREFILL_TOKENS)
            ids, positions = (
                torch.from_numpy(a[part].astype("int64"))[None].to(self._model.device)
                for a in (prompt.token_ids, prompt.positions)
            )
            # Without this mask, transformers treats gaps in the positions as boundaries of packed sequences.
            mask = torch.ones(1, first + ids.shape[1], dtype=torch.long, device=self._model.device)
            self._model(ids, past_key_values=cache, position_ids=positions, attention_mask=mask, logits_to_keep=1)
        last, position = int(prompt.token_ids[-1]), int(prompt.positions[-1])
        self._keep(session, cache, [last], position, prompt.context_length)

    def _keep(self, session: str, cache: DynamicCache, tail: list[int], position: int, context_length: int) -> None:
        seed = self._seeds.getrandbits(62)
        self._sessions.add(session, CacheSession(cache, tail, position, context_length, seed))

    def _draft(
        self,
        name: str,
        answers: list[Int32Array],
        count: int,
        options: tuple[float, int, int],
        cancelled: threading.Event,
    ) -> list[Drafted]:
        session = self._sessions.get(name)
        room = self.info.max_model_len - session.context_length - max(int(answer.size) for answer in answers)
        check = partial(self._check, cancelled)
        try:
            return session.draft(self._model, answers, max(0, min(count, room)), *options, check)
        except SkimError:
            raise
        except Exception:
            self._sessions.remove(name)  # its cache may be half written
            raise

    def _check(self, cancelled: threading.Event | None) -> None:
        """Raises EngineUnavailableError if the engine was closed or the caller cancelled."""
        if self._closed.is_set() or (cancelled is not None and cancelled.is_set()):
            raise EngineUnavailableError("the transformers speculator was closed, or the request cancelled")

    @torch.inference_mode()
    def _forward(
        self,
        token_ids: list[int],
        cache: DynamicCache,
        cancelled: threading.Event | None = None,
        rows: Sequence[int] = (),
    ) -> tuple[int, Queries]:
        """Append tokens to the cache. Returns the most probable next token and the queries of the tokens `rows`."""
        self._check(cancelled)
        queries: Queries = {}
        ids = torch.tensor([token_ids], device=self._model.device)
        logits = self._model(
            ids, past_key_values=cache, use_cache=True, logits_to_keep=1, skim_queries=queries, skim_rows=rows
        ).logits
        return int(logits[0, -1].argmax()), queries

    def _importance(
        self,
        captured: list[Queries],
        visible: list[int],
        cache: DynamicCache,
        prompt: int,
        options: SelectionOptions,
    ) -> torch.Tensor:
        """visible: of all needed queries; those after an EOS were not captured."""
        layers = scored_layers(self._num_layers, options.layers)
        count = sum(len(queries[0][0]) for queries in captured)
        seen = torch.tensor(visible[:count], device=self._model.device)
        aggregate = Aggregate(
            options.aggregation, num_layers=len(layers), steps=count, prompt=prompt, device=self._model.device
        )
        for layer in layers:
            queries = torch.cat([part[layer][0] for part in captured])
            keys = cache.layers[layer].keys[0, :, :prompt]
            aggregate.add(layer_scores(queries, keys, captured[0][layer][1], options.pool_kernel, visible=seen))
        return aggregate.importance(torch.ones(count, dtype=torch.bool)).cpu()
