"""The speculator engine on vLLM: one request in, importance and look-ahead tokens out, batched with others.

The request's options travel in `SamplingParams.extra_args` to `vllm_worker`, the scores come back as bytes in
`RequestOutput.kv_transfer_params` (put there by `vllm_scheduler`). Tested on CPU; `--device cuda` runs the same tests
on a GPU.
"""

import time
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from kv_transfer.errors import EngineUnavailableError, InvalidRequestError, SkimError
from kv_transfer.messages import Int32Array, ModelInfo, SelectionOptions
from kv_transfer.model_info import check_speculator, inspect_model
from speculator_service.engine import Scores
from speculator_service.vllm_requests import SCORE_ARG
from speculator_service.vllm_start import start_engine


class VllmSpeculator:
    """`SpeculatorEngine` over vLLM's AsyncLLM. Use it from one event loop; concurrent calls are batched.

    `info.max_model_len` is M + look_ahead at most. The engine needs one position more, because the last look-ahead
    token is read back in, so a model that is run to its last position takes one token less.
    """

    info: ModelInfo

    def __init__(self, model: str, *, tensor_parallel: int = 1, **engine_options: Any) -> None:
        """engine_options: as in vLLM (dtype, max_model_len, max_num_batched_tokens, gpu_memory_utilization, ...).

        Raises ModelError for a folder that cannot be a speculator (before any engine starts), SkimError for an engine
        that does not start.
        """
        info = inspect_model(model, engine="vllm", max_model_len=engine_options.pop("max_model_len", None))
        check_speculator(model)
        self._engine = start_engine(
            model, min(info.max_model_len + 1, info.max_position), tensor_parallel, engine_options
        )
        config = self._engine.model_config
        self.info = replace(info, max_model_len=config.max_model_len - 1)
        self._vocab_size = config.get_vocab_size()
        eos = config.try_get_generation_config().get("eos_token_id") or []
        self._eos_token_ids = [eos] if isinstance(eos, int) else list(eos)
        self._closed = False

    async def score(self, request_id: str, token_ids: Int32Array, options: SelectionOptions) -> Scores:
        """See `SpeculatorEngine.score`. timings: queue (waiting and transport) and speculate, in milliseconds."""
        self._check(token_ids, options)
        began = time.perf_counter()
        output = await self._generate(request_id, token_ids, options)
        payload = output.kv_transfer_params
        if not payload or "importance" not in payload:
            raise SkimError(f"speculator {self.info.path} gave no scores for request {request_id}")
        total = 1e3 * (time.perf_counter() - began)
        speculate = min(payload["speculate_ms"], total)
        importance = torch.frombuffer(bytearray(payload["importance"]), dtype=torch.float32)
        return Scores(importance, payload["tokens"], {"queue": total - speculate, "speculate": speculate})

    async def check_health(self) -> None:
        """Raise EngineUnavailableError if the engine is closed or dead."""
        if self._closed:
            raise EngineUnavailableError(f"speculator {self.info.path} was closed")
        if self._engine.errored:
            raise EngineUnavailableError(f"speculator {self.info.path} is dead; start it again")

    def close(self) -> None:
        """Stop the engine's processes and free its memory; idempotent."""
        if not self._closed:
            self._closed = True
            self._engine.shutdown()
            # Left to the interpreter's end, its destructor would find half of vLLM gone.
            del self._engine

    async def worker_stats(self) -> list[dict[str, float]]:
        """Per rank, `SpeculatorWorker.speculator_stats`."""
        return await self._engine.collective_rpc("speculator_stats")

    def _check(self, token_ids: Int32Array, options: SelectionOptions) -> None:
        """Refuse here what the engine would refuse late or die of."""
        length, limit = len(token_ids), self.info.max_model_len
        if not length:
            raise InvalidRequestError("an empty prompt cannot be scored")
        if length + options.look_ahead > limit:
            raise InvalidRequestError(
                f"a prompt of {length} tokens with {options.look_ahead} look-ahead tokens is too long for the"
                f" speculator, which takes {limit}; shorten it or lower look_ahead"
            )
        lowest, highest = int(np.min(token_ids)), int(np.max(token_ids))
        if lowest < 0 or highest >= self._vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise InvalidRequestError(
                f"token id {wrong} is outside the speculator's vocabulary of {self._vocab_size} tokens"
            )

    async def _generate(self, request_id: str, token_ids: Int32Array, options: SelectionOptions) -> RequestOutput:
        await self.check_health()
        sampling = SamplingParams(
            temperature=0,
            # One more than the look-ahead: the last look-ahead token must be read back in, for its query.
            max_tokens=options.look_ahead + 1,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={
                SCORE_ARG: {
                    **options.model_dump(include={"look_ahead", "pool_kernel", "layers", "aggregation"}),
                    "eos_token_ids": self._eos_token_ids,
                }
            },
        )
        prompt = tokens_input(np.asarray(token_ids).tolist())
        try:
            async with aclosing(self._engine.generate(prompt, sampling, request_id)) as outputs:
                async for output in outputs:
                    if output.finished:
                        return output
        except EngineDeadError as error:
            raise EngineUnavailableError(f"speculator {self.info.path} died; start it again") from error
        except VLLMClientError as error:
            raise InvalidRequestError(f"the speculator refuses the prompt: {error}") from error
        except EngineGenerateError as error:
            raise SkimError(f"speculator {self.info.path} failed on request {request_id}: {error.__cause__}") from error
        raise EngineUnavailableError(f"speculator {self.info.path} ended request {request_id} without an answer")
