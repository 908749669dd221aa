"""The speculator's vLLM worker: captures queries while the model runs, and scores a prompt after its last step.

It reads only `SchedulerOutput`, `ModelRunnerOutput` and the attention layers, which both model runners have.

Run on CPU (V1 runner with TP 1 and 2, V2 runner in Triton's interpreter), and on one H200 (docs/gpu.md). Not run: NCCL.
"""

import time
from typing import Any

import torch
from vllm.distributed import get_tp_group
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, UniformTypeKVCacheSpecs
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from kv_transfer.options import SelectionOptions
from skim_common.errors import ModelError
from speculator_service.scoring.importance import score_table, scored_layers, total, valid_steps
from speculator_service.scoring.paged import PagedScoring, kernels_for
from speculator_service.scoring.queries import ScoreQueries
from speculator_service.vllm_backend.head_scoring import HeadScoring
from speculator_service.vllm_backend.keys import KeyReader, absorbed
from speculator_service.vllm_backend.multi_step import following_steps, merge
from speculator_service.vllm_backend.query_capture import (
    QueryCapture,
    attention_formula,
    captured_size,
    piecewise_while,
    scorable_layers,
)
from speculator_service.vllm_backend.sampling import sample_exactly
from speculator_service.vllm_backend.scheduler import SCORES
from speculator_service.vllm_backend.scored_requests import STEP_ROWS, Computed, RequestLedger, ScoredRequest, Wanted
from vllm_hooks.worker import RestoringWorker

TABLE_ELEMENTS = 2**26
"""Limit for the scores of one table in memory, in elements. More queries are scored in groups, at least one."""


class SpeculatorWorker(RestoringWorker):
    """vLLM's worker of this platform. It also scores requests, and runs the synthetic steps of `multi_step`."""

    def load_model(self, **kwargs: Any) -> None:
        super().load_model(**kwargs)
        sample_exactly(self.use_v2_model_runner)
        self._layers = scorable_layers(self.vllm_config)
        most = self.scheduler_config.max_num_seqs
        # Each request may have one step, and the questions of all requests share the other rows.
        self._question_rows = max(STEP_ROWS, most)
        self._capture = QueryCapture(self._layers, most + self._question_rows, self.model_config.dtype, self.device)
        self._computed: list[Computed] = []
        self._wanted: list[Wanted] = []
        self._step = SchedulerOutput.make_empty()
        if get_tp_group().world_size > 1:
            # Makes NCCL's communicator of this group now, so that vLLM's memory profile counts it and no step waits.
            torch.distributed.all_reduce(torch.zeros(1, device=self.device), group=get_tp_group().device_group)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        super().initialize_from_config(kv_cache_config)
        if self.use_v2_model_runner:
            piecewise_while(self.model_runner.cudagraph_manager, lambda: bool(self._wanted))
        group, block_size = self._group(kv_cache_config)
        self._ledger = RequestLedger(block_size, group, self._question_rows)
        self._keys = KeyReader(self._layers[0], block_size, self.model_config.dtype)
        self._scoring = PagedScoring(kernels_for(self.device))
        self._heads = HeadScoring(self._layers, self._keys, self._scoring, self._capture.missing)
        if kernels := self._scoring.kernels:
            layer = self._layers[0]
            self._compile_kernels(kernels.step_counts(layer.num_heads // layer.num_kv_heads))

    def _group(self, config: KVCacheConfig) -> tuple[int, int]:
        """Index and block size of the KV cache group of the scored layers. Raises ModelError unless there is one."""
        scored = {layer.layer_name for layer in self._layers}
        groups = [
            (i, g.kv_cache_spec) for i, g in enumerate(config.kv_cache_groups) if scored.intersection(g.layer_names)
        ]
        if len(groups) == 1 and isinstance(groups[0][1], UniformTypeKVCacheSpecs):
            # Gemma 4: the heads of windowed layers, which share the blocks, have another size.
            groups = [(groups[0][0], groups[0][1].kv_cache_specs[self._layers[0].layer_name])]
        if len(groups) != 1 or not isinstance(groups[0][1], FullAttentionSpec):
            raise ModelError(
                f"model {self.model_config.model} is not supported yet as a speculator: vLLM puts its full-attention"
                f" layers into {len(groups)} KV cache groups or an unusual one; choose another model"
            )
        return groups[0][0], groups[0][1].block_size

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        self._step = scheduler_output
        return self._forward(scheduler_output)

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        """The tokens of the executed step and of the synthetic steps after it."""
        computed = [self._computed]
        outputs: list[ModelRunnerOutput] = []
        latest = super().sample_tokens(grammar_output)
        for step in following_steps(self._step):
            self._forward(step)
            # After the next forward is queued, so that a GPU computes while these tokens are copied.
            outputs.append(_on_host(latest))
            computed.append(self._computed)
            latest = super().sample_tokens(None)
        outputs.append(_on_host(latest))
        merged = merge(outputs)
        if scores := self._finish(list(zip(computed, outputs, strict=True))):
            setattr(merged, SCORES, scores)
        return merged

    def _forward(self, step: SchedulerOutput) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        self._computed = self._ledger.update(step)
        self._wanted = self._ledger.wanted(self._computed)
        self._capture.expect([wanted.slot for wanted in self._wanted])
        output = super().execute_model(step)
        if self._wanted:
            queries = self._capture.collect()
            for row, wanted in enumerate(self._wanted):
                wanted.request.queries[wanted.position] = queries[:, row]
        return output

    def _finish(self, steps: list[tuple[list[Computed], ModelRunnerOutput]]) -> dict[str, dict[str, Any]]:
        """Store the sampled tokens and score the finished requests. Payloads by id on the driver rank, else {}."""
        done: list[ScoredRequest] = []
        for computed, output in steps:
            for part in computed:
                # After preemption, a request computes known steps again without sampling.
                if part.step >= 0 and (sampled := output.sampled_token_ids[output.req_id_to_index[part.request.id]]):
                    part.request.tokens[part.step] = sampled[0]
            done += [part.request for part in computed if part.is_last]
        scores = {request: self._score(request) for request in done}
        if not self.is_driver_worker:
            return {}
        return {request.id: _payload(request, importance) for request, importance in scores.items()}

    def scored_heads(self) -> list[tuple[int, int]]:
        return self._heads.all_heads()

    def _score(self, request: ScoredRequest) -> torch.Tensor:
        """Importance [M]. Only the driver rank knows the look-ahead tokens, so only its result is right."""
        if request.asked.heads:
            return self._heads.score(request)
        count = len(request.steps)
        valid = _valid(request) if self.is_driver_worker else torch.ones(count, dtype=torch.bool)
        layers = scored_layers(len(self._layers), request.asked.layers)
        table_rows = 1 if request.asked.aggregation == "max" else len(layers)
        at_once = max(1, TABLE_ELEMENTS // (table_rows * request.prompt))
        importance = torch.zeros(request.prompt, device=self.device)
        ranks = get_tp_group()
        for first in range(0, count, at_once):
            group = slice(first, first + at_once)
            table = self._attention(request, group)
            if ranks.world_size > 1:
                torch.distributed.all_reduce(table, op=torch.distributed.ReduceOp.MAX, group=ranks.device_group)
            importance += total(table, valid[group])
        return importance / int(valid.sum())

    def _attention(self, request: ScoredRequest, group: slice) -> torch.Tensor:
        """Attention of a group of the request's queries to the prompt: [1 or L, S, M], over the heads of this rank."""
        scored = scored_layers(len(self._layers), request.asked.layers)
        chosen, positions = slice(scored.start, scored.stop), request.steps[group]
        layers, queries = self._layers[chosen], request.captured(positions, self._capture.missing)[chosen]
        queries = torch.stack([absorbed(layer, own) for layer, own in zip(layers, queries, strict=True)])
        shape = {"layers": len(layers), "steps": len(positions), "prompt": request.prompt}
        table = score_table(request.asked.aggregation, **shape, device=self.device)
        keys = self._keys.read(layers, request.blocks, request.prompt)
        self._scoring.fill(table, queries, keys, [attention_formula(layer) for layer in layers])
        return table

    def _compile_kernels(self, step_counts: list[int]) -> None:
        """Score one token of an empty cache, so that no request waits for compilation: by the default options, and with
        these numbers of steps."""
        options = SelectionOptions()
        shape = (len(self._layers), self._layers[0].num_heads, captured_size(self._layers[0]))
        query = torch.zeros(shape, dtype=self.model_config.dtype, device=self.device)
        for look_ahead in (options.look_ahead, *(steps - 1 for steps in step_counts)):
            asked = ScoreQueries(look_ahead=look_ahead, layers=options.layers, aggregation=options.aggregation)
            queries = dict.fromkeys(range(look_ahead + 1), query)
            self._attention(ScoredRequest("", 1, asked, [0], queries), slice(None))
        heads = tuple((layer, head, 1.0) for layer, head in self._heads.all_heads())  # this rank has some of them
        self._heads.score(ScoredRequest("", 1, ScoreQueries(heads=heads), [0], {0: query}))


def _on_host(output: ModelRunnerOutput | AsyncModelRunnerOutput) -> ModelRunnerOutput:
    """The V2 runner returns an output before its tokens are copied to the host."""
    return output.get_output() if isinstance(output, AsyncModelRunnerOutput) else output


def _valid(request: ScoredRequest) -> torch.Tensor:
    return valid_steps(torch.tensor(request.look_ahead, dtype=torch.int64), request.asked.eos_token_ids)


def _payload(request: ScoredRequest, importance: torch.Tensor) -> dict[str, Any]:
    """importance: float32, as bytes. tokens: up to the first EOS, included. speculate_ms: from the first step on."""
    return {
        "importance": importance.cpu().numpy().tobytes(),
        # Step i is valid if token i is part of the answer.
        "tokens": request.look_ahead[: int(_valid(request).sum())],
        "speculate_ms": 1e3 * (time.perf_counter() - request.started),
    }
