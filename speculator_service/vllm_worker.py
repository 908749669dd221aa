"""The speculator's vLLM worker: captures queries while the model runs and scores a prompt after its last step.

Overrides four methods of `vllm.v1.worker.gpu_worker.Worker` and reads nothing but `SchedulerOutput`,
`ModelRunnerOutput` and the attention layers, so one class serves both model runners (V1 on CPU, V2 on a GPU). Keys are
read once, after the last look-ahead step. All of this runs in the engine's own processes.

EOS: with async scheduling (GPU) sampled tokens reach the host only in `get_output`. Scores are therefore copied to the
host per step [S, M], and the steps after an EOS are masked there.

Run on CPU: V1 runner with TP 1 and 2, V2 runner in Triton's interpreter with async scheduling. Not run: any GPU, so
neither pinned copies, events, NCCL nor CUDA graphs.
"""

import time
from typing import Any

import torch
from vllm.distributed import get_tp_group
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from kv_transfer.errors import ModelError
from speculator_service.scoring import Aggregate, layer_scores, scored_layers, valid_steps
from speculator_service.vllm_attention import QueryCapture, scorable_layers
from speculator_service.vllm_keys import KeyReader
from speculator_service.vllm_positions import RestoredPositions
from speculator_service.vllm_requests import RequestLedger, ScoredRequest, Wanted
from speculator_service.vllm_sampling import sample_exactly
from speculator_service.vllm_scheduler import SCORES

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class SpeculatorWorker(PlatformWorker):
    """vLLM's worker of this platform, which also scores the requests that carry `SCORE_ARG`."""

    def load_model(self, **kwargs: Any) -> None:
        super().load_model(**kwargs)
        sample_exactly(self.use_v2_model_runner)
        self._layers = scorable_layers(self.vllm_config)
        self._capture = QueryCapture(
            self._layers, self.scheduler_config.max_num_seqs, self.model_config.dtype, self.device
        )
        self._wanted: list[Wanted] = []
        self._scored, self._scoring_ms = 0, 0.0

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        super().initialize_from_config(kv_cache_config)
        groups = kv_cache_config.kv_cache_groups
        if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
            raise ModelError(
                f"model {self.model_config.model} is not supported yet as a speculator: it needs {len(groups)} KV cache"
                " groups; choose one with full attention in every layer"
            )
        block_size = groups[0].kv_cache_spec.block_size
        self._ledger = RequestLedger(block_size)
        self._keys = KeyReader(self._layers[0], block_size)
        self._positions = RestoredPositions(
            self.model_runner.get_model(),
            kv_cache_config.num_blocks * block_size,
            block_size,
            self._layers[0].layer_name,
            self.device,
        )

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        self._wanted = self._ledger.update(scheduler_output)
        self._capture.expect([wanted.slot for wanted in self._wanted])
        self._positions.expect(scheduler_output)
        output = super().execute_model(scheduler_output)
        if self._wanted:
            queries = self._capture.collect()
            for row, wanted in enumerate(self._wanted):
                wanted.request.queries[wanted.step] = queries[:, row]
        return output

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        output = super().sample_tokens(grammar_output)
        if not self._wanted or output is None:
            return output
        # The step's sampling is already under way: scoring comes after it, so it delays no other request's token.
        scored = ScoredStep(self._wanted, {w.request.id: self._score(w.request) for w in self._wanted if w.is_last})
        if not self.is_driver_worker:
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            return ScoredOutput(output, scored)
        scored.finish(output)
        return output

    def speculator_stats(self) -> dict[str, float]:
        """Requests alive, scored, resumed after preemption; prompt tokens from the cache; milliseconds of scoring."""
        return {
            "alive": len(self._ledger.requests),
            "resumed": self._ledger.resumed,
            "cached_tokens": self._ledger.cached_tokens,
            "scored": self._scored,
            "scoring_ms": self._scoring_ms,
        }

    def _score(self, request: ScoredRequest) -> Aggregate:
        """Attention of all steps to the prompt [1 or L, S, M], over the heads of all ranks, on its way to the host."""
        began = time.perf_counter()
        layers = scored_layers(len(self._layers), request.options["layers"])
        steps = request.look_ahead + 1
        aggregate = Aggregate(
            request.options["aggregation"],
            num_layers=len(layers),
            steps=steps,
            prompt=request.prompt,
            device=self.device,
        )
        queries = torch.stack([request.queries[step] for step in range(steps)], dim=1)
        for index in layers:
            layer = self._layers[index]
            keys = self._keys.read(layer, request.blocks, request.prompt)
            aggregate.add(layer_scores(queries[index], keys, layer.impl.scale, request.options["pool_kernel"]))
        tensor_parallel = get_tp_group()
        if tensor_parallel.world_size > 1:
            torch.distributed.all_reduce(
                aggregate.table, op=torch.distributed.ReduceOp.MAX, group=tensor_parallel.device_group
            )
        if aggregate.table.is_cuda:
            host = torch.empty_like(aggregate.table, device="cpu", pin_memory=True)
            aggregate.table = host.copy_(aggregate.table, non_blocking=True)
        self._scored += 1
        self._scoring_ms += 1e3 * (time.perf_counter() - began)
        return aggregate


class ScoredStep:
    """One engine step's look-ahead tokens and finished scores, put together once the tokens are on the host."""

    def __init__(self, wanted: list[Wanted], scores: dict[str, Aggregate]) -> None:
        self._wanted, self._scores = wanted, scores
        # Marks the point on the device's stream where the scores have reached the host.
        self._copied = torch.cuda.Event() if scores and torch.cuda.is_available() else None
        if self._copied:
            self._copied.record()

    def finish(self, output: ModelRunnerOutput) -> None:
        """Note the sampled tokens and hang the payloads of the requests that are done on `output`."""
        for request, step, _ in self._wanted:
            # A re-prefill after preemption passes through known steps without sampling.
            if sampled := output.sampled_token_ids[output.req_id_to_index[request.id]]:
                request.tokens[step] = sampled[0]
        if self._scores:
            if self._copied:
                self._copied.synchronize()
            payloads = {w.request.id: self._payload(w.request) for w in self._wanted if w.is_last}
            setattr(output, SCORES, payloads)

    def _payload(self, request: ScoredRequest) -> dict[str, Any]:
        """importance: float32 [M] as bytes. tokens: to the first EOS, included. speculate_ms: first step to scores."""
        tokens = [request.tokens[step] for step in range(request.look_ahead)]
        valid = valid_steps(torch.tensor(tokens, dtype=torch.int64), request.options["eos_token_ids"])
        importance = self._scores[request.id].importance(valid)
        return {
            "importance": importance.numpy().tobytes(),
            # Step i is valid while token i is still part of the answer.
            "tokens": tokens[: int(valid.sum())],
            "speculate_ms": 1e3 * (time.perf_counter() - request.started),
        }


class ScoredOutput(AsyncModelRunnerOutput):
    """The runner's asynchronous output, with scores once its tokens are on the host (GPU)."""

    def __init__(self, output: AsyncModelRunnerOutput, step: ScoredStep) -> None:
        self._output, self._step = output, step

    def get_output(self) -> ModelRunnerOutput:
        output = self._output.get_output()
        self._step.finish(output)
        return output
