"""The speculator engine on vLLM: scores and drafts are requests to one AsyncLLM, batched with each other.

What a scoring request asks for reaches the worker in `SamplingParams.extra_args`. The scores come back as bytes in
`RequestOutput.kv_transfer_params`, where the scheduler puts them.
"""

import logging
import math
import time
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from kv_transfer.arrays import Float32Array, Int32Array, Span, common_prefix, no_numbers
from kv_transfer.drafts import Drafted
from kv_transfer.limits import check_ids, check_speculator_length, check_tokens
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from kv_transfer.position_map import position_args
from skim_common.errors import EngineUnavailableError, InvalidRequestError, SessionLostError, SkimError
from skim_common.models.info import ModelInfo, inspect_model
from skim_common.models.source import local_folder
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine
from speculator_service.model import check_speculator
from speculator_service.scoring.heads import HeadProfile, profile_of
from speculator_service.scoring.queries import SCORE_ARG, ScoreQueries, question_rows
from speculator_service.vllm_backend.scheduler import Gang
from speculator_service.vllm_backend.sessions import EngineSession, drafted, sampling
from speculator_service.vllm_backend.start import engine_length, start_engine
from vllm_hooks.engine import SIGN_OF_LIFE, cache_tokens

logger = logging.getLogger(__name__)

SESSIONS_SHARE = 0.5
"""The share of the prefix cache that drafting sessions may fill. The rest is for prompts, and for answers that grow."""


class VllmSpeculator(SpeculatorEngine):
    """`SpeculatorEngine` over vLLM's AsyncLLM. Use it from one event loop; concurrent calls are batched.

    `info.max_model_len` is the maximum of M + look_ahead: one less than vLLM's, because the query of the last
    look-ahead token is computed too.
    """

    info: ModelInfo

    def __init__(
        self,
        model: str,
        *,
        tensor_parallel: int = 1,
        head_profile: str | None = None,
        **engine_options: Any,
    ) -> None:
        """head_profile: the file of the model's head profile (`scoring.heads`); None: the one that is known, if any.
        engine_options: as in vLLM. Raises ModelError for a folder that cannot be a speculator, before any process
        starts, and SkimError for a wrong profile or if the engine does not start.
        """
        length, overrides = engine_options.pop("max_model_len", None), engine_options.get("hf_overrides")
        info = inspect_model(model, engine="vllm", max_model_len=length, overrides=overrides)
        check_speculator(model, info.max_model_len)
        profile = profile_of(info, head_profile)
        self._engine = start_engine(
            local_folder(model, weights=True),
            engine_length(model, info.max_model_len, info.max_position),
            tensor_parallel,
            engine_options,
        )
        config, vllm_config = self._engine.model_config, self._engine.vllm_config
        cached = cache_tokens(vllm_config)
        self.info = replace(info, max_model_len=config.max_model_len - 1, cache_tokens=cached)
        # The states of other layers cannot be found again by the blocks of the attention layers.
        self.supports_drafts = bool(cached) or not config.is_hybrid
        self.max_sessions = vllm_config.scheduler_config.max_num_seqs
        self.max_session_tokens = SESSIONS_SHARE * cached if cached else math.inf
        self.shares_device = vllm_config.device_config.device_type == "cpu"
        self._vocab_size = config.get_vocab_size()
        eos = config.try_get_generation_config().get("eos_token_id") or []
        self.eos_token_ids = tuple(sorted({eos} if isinstance(eos, int) else set(eos)))
        self.use_heads(profile)
        self._sessions: dict[str, EngineSession] = {}
        self.counts = {"rounds": 0, "rollbacks": 0, "rebuilt": 0}
        self._gang, self._closed = Gang(), False

    def use_heads(self, profile: HeadProfile | None) -> None:
        """Score by the heads of this profile from now on, where a request asks for `scoring: heads`."""
        self._profile, self._said_attention = profile, False
        gain = profile.gain_over_words if profile else None
        self.info = replace(self.info, has_head_profile=profile is not None, gain_over_words=gain)

    async def score(self, request: ScoreRequest) -> Scores:
        """See `SpeculatorEngine.score`."""
        token_ids, options = request.token_ids, request.options
        if options.scoring == "heads" and self._profile is None:
            options = options.model_copy(update={"scoring": "attention"})
            if not self._said_attention:
                self._said_attention = True
                logger.warning(
                    "speculator %s has no head profile, so scoring: heads scores by attention (docs/options.md)",
                    self.info.path,
                )
        check_tokens(token_ids, self._vocab_size)
        check_speculator_length(int(token_ids.size), options.tokens_ahead, self.info)
        asked = ScoreQueries.of(options, int(token_ids.size), request.questions, self._profile, self.eos_token_ids)
        began = time.perf_counter()
        output, importance = await self._scored(request.request_id, token_ids, asked, request.cache_salt)
        total = 1e3 * (time.perf_counter() - began)
        payload = output.kv_transfer_params
        speculate = min(payload["speculate_ms"], total)
        if request.keep_session:
            session = EngineSession(np.array(token_ids, np.int32), len(token_ids), request.cache_salt)
            self._sessions[request.request_id] = session
        timings = {"queue": total - speculate, "speculate": speculate}
        return Scores(importance, payload["tokens"], timings, output.num_cached_tokens or 0)

    async def open_session(self, session: str, prompt: KeptPrompt, *, cache_salt: str | None = None) -> None:
        check_speculator_length(prompt.context_length, 0, self.info)
        check_ids(prompt.token_ids, self._vocab_size)
        opened = EngineSession(prompt.token_ids, prompt.context_length, cache_salt, position_args(prompt))
        read = sampling(1, 0.0, 0, self._vocab_size, opened.extra_args, await self._gang.join())
        await self._generate(session, prompt.token_ids, read, opened.cache_salt)
        self._sessions[session] = opened

    async def draft(
        self, session: str, answer: Int32Array, count: int, *, temperature: float = 0.0, top_m: int = 0
    ) -> Drafted:
        """See `SpeculatorEngine.draft`. A sampled draft has at most MAX_TOP pairs of q."""
        kept = self._sessions.get(session)
        if kept is None:
            raise SessionLostError(f"session {session} is not on this speculator: it was closed or never opened")
        check_ids(answer, self._vocab_size)
        count = min(count, self.info.max_model_len - kept.context_length - answer.size)
        if count <= 0:
            await self.check_health()
            return Drafted(no_numbers())
        gang = await self._gang.join()
        options = sampling(count, temperature, top_m, self._vocab_size, kept.extra_args, gang)
        token_ids, before = np.concatenate([kept.prompt, answer.astype(np.int32)]), kept.read
        self.counts["rounds"] += 1
        output = await self._generate(f"{session}.{self.counts['rounds']}", token_ids, options, kept.cache_salt)
        common = common_prefix(before, token_ids)
        # The last token is computed again for its logits, and only whole blocks are sure to come from the cache.
        block = self._engine.vllm_config.cache_config.block_size
        expected = min(common, token_ids.size - 1) // block * block
        self.counts["rollbacks"] += common < before.size
        self.counts["rebuilt"] += (output.num_cached_tokens or 0) < expected
        # It computed its own drafts, except the last one.
        kept.read = np.concatenate([token_ids, np.array(output.outputs[0].token_ids[:-1], np.int32)])
        return drafted(output, options.top_k)

    async def close_session(self, session: str) -> None:
        """See `SpeculatorEngine.close_session`; its KV stays in the prefix cache until it is evicted."""
        self._sessions.pop(session, None)

    async def stats(self) -> dict[str, int]:
        """rollbacks: rounds after a rejected draft. rebuilt: rounds that computed evicted blocks again."""
        return {name: self.counts[name] for name in ("rollbacks", "rebuilt")}

    async def check_health(self) -> None:
        if self._closed:
            raise EngineUnavailableError("the speculator engine was closed")
        if self._engine.errored:
            raise EngineUnavailableError("the speculator engine is dead; restart it")

    async def sign_of_life(self) -> None:
        await self._engine.collective_rpc(SIGN_OF_LIFE)

    def close(self) -> None:
        """Stop the engine's processes and free its memory; idempotent."""
        if not self._closed:
            self._closed = True
            self._engine.shutdown()
            # At interpreter exit its destructor would fail, because parts of vLLM are already unloaded.
            del self._engine

    async def head_masses(
        self, request_id: str, token_ids: Int32Array, question: Span
    ) -> tuple[list[tuple[int, int]], torch.Tensor]:
        """(layer, head) of each of n heads that can score, and their attention mass, float32 [2, n, M]: of the mean of
        the question's rows, and of the row of the last prompt token. Raises as `score`."""
        check_tokens(token_ids, self._vocab_size)
        names = [(layer, head) for layer, head in (await self._engine.collective_rpc("scored_heads"))[0]]
        heads = tuple((layer, head, 1.0) for layer, head in names)
        rows = question_rows(SelectionOptions(), int(token_ids.size), [question])
        by_rows = ScoreQueries(heads=heads, questions=rows, question=1.0, last=0.0, apart=True)
        by_last = ScoreQueries(heads=heads, apart=True)
        masses = [
            (await self._scored(f"{request_id}-{number}", token_ids, asked, None))[1]
            for number, asked in enumerate((by_rows, by_last))
        ]
        return names, torch.from_numpy(np.stack(masses)).view(2, len(names), -1)

    async def _scored(
        self, request_id: str, token_ids: Int32Array, asked: ScoreQueries, cache_salt: str | None
    ) -> tuple[RequestOutput, Float32Array]:
        """Run a scoring request: vLLM's output, and the worker's scores, float32, flat."""
        params = SamplingParams(
            temperature=0,
            # One more than the look-ahead, because the query of the last look-ahead token is needed too.
            max_tokens=asked.look_ahead + 1,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={SCORE_ARG: msgspec.to_builtins(asked)},
        )
        output = await self._generate(request_id, token_ids, params, cache_salt)
        payload = output.kv_transfer_params
        if not payload or "importance" not in payload:
            raise SkimError(f"the speculator engine gave no scores for request {request_id}")
        return output, np.frombuffer(bytearray(payload["importance"]), np.float32)

    async def _generate(
        self, request_id: str, token_ids: Int32Array, params: SamplingParams, cache_salt: str | None
    ) -> RequestOutput:
        await self.check_health()
        prompt = tokens_input(np.asarray(token_ids).tolist(), cache_salt=cache_salt)
        try:
            async with aclosing(self._engine.generate(prompt, params, request_id)) as outputs:
                async for output in outputs:
                    if output.finished:
                        return output
        except EngineDeadError as error:
            logger.error("the engine of %s died: %s", self.info.path, error)
            raise EngineUnavailableError("the speculator engine died; restart it") from error
        except VLLMClientError as error:
            raise InvalidRequestError(f"the speculator refuses the prompt: {error}") from error
        except EngineGenerateError as error:
            logger.error("the engine of %s failed on request %s", self.info.path, request_id)
            raise SkimError(f"the speculator engine failed on request {request_id}; its log has the cause") from error
        raise EngineUnavailableError(f"the speculator engine ended request {request_id} without an answer")
