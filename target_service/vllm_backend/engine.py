"""The target on vLLM: continuous batching, paged KV, prefix caching and tensor parallelism, with restored positions."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from prometheus_client import Metric
from vllm.config import VllmConfig
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.prometheus import get_prometheus_registry

from kv_transfer.limits import KvRole, check_request
from kv_transfer.messages import ADAPTER, DELTA, GenerateOutput, GenerateRequest
from kv_transfer.position_map import position_args
from skim_common.errors import EngineUnavailableError, InvalidRequestError, SkimError
from skim_common.models.info import inspect_model
from skim_common.models.source import local_folder
from target_service.drafting.session import DRAFTING, DraftSettings
from target_service.engine import TargetEngine
from target_service.vllm_backend.continued_answers import ANSWERED, continue_outputs
from target_service.vllm_backend.kv_connector import connector_options, side_channel, transfer_params
from target_service.vllm_backend.outputs import SCORING, EngineCounts, generate_output, last_scores
from target_service.vllm_backend.start import checked_decode, find_stat_logger, speculation_options, start_engine
from target_service.vllm_backend.v1_repairs import TargetSamplingParams
from vllm_hooks.adapters import adapters_of, load_adapters, lora_options
from vllm_hooks.engine import SIGN_OF_LIFE, cache_tokens

logger = logging.getLogger(__name__)

ENGINE_ARGS = {"reasoning_ended", "reasoning_parser_kwargs", "trace_headers"}
"""Keywords of AsyncLLM.generate that `GenerateRequest.engine_args` may contain, besides ADAPTER."""

UNCOMPILED = "the structured output cannot be compiled, or allows no text: correct or simplify its grammar or schema"


class VllmTarget(TargetEngine):
    """TargetEngine over vLLM's AsyncLLM (vllm.v1.engine.async_llm), whose core runs in processes of its own.

    decode: fields of DecodeOptions, the speculation of requests that do not switch it off; None means method none.
    draft_model: folder or hub name, for those of vLLM's own methods that have weights. draft_channel: keyword arguments
    of `kv_transfer.draft_channel.connecting`, for method remote. kv_role: the half of a split target; KV blocks move
    from `prefill` to `decode`. kv_host: the address of this node, where the other half finds the blocks.
    approximate_positions: accept a model with linear-attention or state-space layers. They read the kept tokens as one
    compact text, so only the attention layers see the original positions. lora_modules: as of `adapters_of`.
    stat_loggers: dotted names of classes that receive vLLM's own statistics (vllm.v1.metrics.loggers.StatLoggerBase).
    engine_options: fields of vllm.engine.arg_utils.AsyncEngineArgs.

    Raises ModelError for a folder or model that cannot be used, SkimError if the engine does not start.
    """

    worker_cls = "target_service.vllm_backend.worker.TargetWorker"
    scheduler_cls = "target_service.vllm_backend.scheduler.TargetScheduler"
    async_scheduler_cls = "target_service.vllm_backend.scheduler.AsyncTargetScheduler"

    def __init__(
        self,
        model: str,
        *,
        tensor_parallel: int = 1,
        decode: Mapping[str, Any] | None = None,
        draft_model: str | None = None,
        draft_channel: Mapping[str, Any] | None = None,
        kv_role: KvRole | None = None,
        kv_host: str = "127.0.0.1",
        approximate_positions: bool = False,
        lora_modules: Sequence[str | Mapping[str, Any]] = (),
        stat_loggers: Sequence[str] = (),
        **engine_options: Any,
    ) -> None:
        length, overrides = engine_options.get("max_model_len"), engine_options.get("hf_overrides")
        info = inspect_model(model, engine="vllm", max_model_len=length, overrides=overrides)
        # Always set, because vLLM's default for longrope models is the original maximum.
        engine_options["max_model_len"] = info.max_model_len
        self.decode = checked_decode(decode)
        engine_options |= speculation_options(self.decode, draft_model, draft_channel, engine_options)
        self._kv_role = kv_role
        engine_options |= connector_options(kv_role, engine_options)
        self._adapters = adapters_of(lora_modules)
        engine_options |= lora_options(self._adapters, engine_options)
        folder = local_folder(model, weights=True)
        loggers = [self._count, *map(find_stat_logger, stat_loggers)]
        with side_channel(kv_role, kv_host):
            self._engine: AsyncLLM = start_engine(
                folder,
                tensor_parallel,
                engine_options,
                worker_cls=self.worker_cls,
                scheduler_cls=self.scheduler_cls,
                async_scheduler_cls=self.async_scheduler_cls,
                approximate_positions=approximate_positions,
                # Named, because vLLM leaves its own out beside one of `stat_loggers` that is like it, and the last one,
                # because each of them takes those before it out of the registry.
                stat_loggers=[*loggers, PrometheusStatLogger],
            )
        continue_outputs(self._engine.output_processor)
        self.info = replace(info, cache_tokens=cache_tokens(self._engine.vllm_config))

    def _count(self, config: VllmConfig, engine_index: int = 0) -> EngineCounts:
        self._counts = EngineCounts(config, engine_index)
        return self._counts

    async def prepare(self) -> None:
        await load_adapters(self._engine, self._adapters)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        """As TargetEngine.generate."""
        sampling = self._sampling_params(request)
        args = dict(request.engine_args)
        adapter = args.pop(ADAPTER, None)
        if adapter is not None and adapter not in self._adapters:
            raise InvalidRequestError(f"the target has no LoRA adapter {adapter!r}")
        if unknown := args.keys() - ENGINE_ARGS:
            raise InvalidRequestError(f"the target engine has no argument {sorted(unknown)[0]!r}")
        prompt = tokens_input(request.prompt.token_ids.tolist(), cache_salt=request.cache_salt)
        stream = self._engine.generate(
            prompt,
            sampling,
            request.request_id,
            priority=request.priority,
            lora_request=self._adapters.get(adapter) if adapter else None,
            **args,
        )
        first = True
        try:
            # AsyncLLM aborts the request when its own generator is closed or cancelled.
            async with aclosing(stream):
                async for output in stream:
                    # KV blocks that did not arrive, and an answer that the grammar refuses, are other causes.
                    alone = request.kv_blocks is None and not request.answered
                    failed = any(part.finish_reason == "error" for part in output.outputs)
                    if sampling.structured_outputs and alone and failed:
                        raise InvalidRequestError(UNCOMPILED)
                    if request.scored:
                        output.prompt_logprobs = last_scores(output, request)
                    yield await generate_output(output, with_timings=first)
                    first = False
        except VLLMClientError as e:
            raise InvalidRequestError(str(e)) from e
        except (EngineDeadError, GracefulHTTPError) as e:
            logger.error("the engine of %s cannot answer: %s", self.info.path, e)
            raise EngineUnavailableError("the target engine cannot answer; its log has the cause") from e
        except EngineGenerateError as e:
            if isinstance(e.__cause__, ValueError):
                raise InvalidRequestError(str(e.__cause__)) from e
            logger.error("the engine of %s failed on request %s", self.info.path, request.request_id)
            raise SkimError(f"the target engine failed on request {request.request_id}; its log has the cause") from e

    def _sampling_params(self, request: GenerateRequest) -> SamplingParams:
        """vLLM's checked parameters for this request. `extra_args` contains the kept positions."""
        max_tokens = check_request(request, self.info)
        extra_args = dict(request.sampling.get("extra_args") or {})
        if blocks := transfer_params(self._kv_role, request):
            extra_args["kv_transfer_params"] = blocks
        if request.answered:
            extra_args[ANSWERED] = request.answered
        fields = {"output_kind": DELTA, **request.sampling, "max_tokens": max_tokens}
        # vLLM's fast prefill has no hidden states of the prompt; its engine core would die of such a request.
        if request.scored and not self._engine.vllm_config.cache_config.kv_sharing_fast_prefill:
            fields |= SCORING
        # Each token of the answer has the same offset as the tokens that this engine will decode.
        prompt, _ = request.prompt_and_answer()
        extra_args |= position_args(prompt)
        if unknown := fields.keys() - set(SamplingParams.__struct_fields__):
            raise InvalidRequestError(f"vLLM has no sampling parameter {sorted(unknown)[0]!r}")
        try:
            sampling = msgspec.convert(fields, TargetSamplingParams)
        except (msgspec.ValidationError, VLLMClientError, ValueError) as e:
            raise InvalidRequestError(f"sampling parameters: {e}") from e
        if self.decode.method != "none":
            extra_args[DRAFTING] = DraftSettings.of(request)
        sampling.extra_args = extra_args or None
        return sampling

    async def decode_stats(self) -> dict[str, Any]:
        """`EngineCounts.decode`, and with method remote `RemoteDrafts.stats`; {} with method none."""
        if self.decode.method == "none":
            return {}
        # With pipeline parallelism, only the ranks of the last stage have a proposer.
        ranks = await self._engine.collective_rpc("draft_stats")
        # The worker's counts come last: vLLM also counts rounds in which no place of a request had a draft.
        return {**self._counts.decode, **next((stats for stats in ranks if stats is not None), {})}

    def transfer_stats(self) -> dict[str, int]:
        """`EngineCounts.transfer` of a decoding half; {} for any other engine."""
        return dict(self._counts.transfer) if self._kv_role == "decode" else {}

    async def stats(self) -> dict[str, Any]:
        return {**await self.decode_stats(), **self.transfer_stats()}

    def metric_families(self) -> list[Metric]:
        return [family for family in get_prometheus_registry().collect() if family.name.startswith("vllm:")]

    async def check_health(self) -> None:
        try:
            await self._engine.check_health()
        except EngineDeadError as e:
            logger.error("the engine of %s is dead: %s", self.info.path, e)
            raise EngineUnavailableError("the target engine is dead; restart it") from e

    async def sign_of_life(self) -> None:
        await self._engine.collective_rpc(SIGN_OF_LIFE)

    def close(self) -> None:
        self._engine.shutdown()
