"""The pair in torch and transformers, for machines where vLLM does not run. Scoring and selection are Skim's own.

Prefill comes close to the speed of the device. Decoding does not: transformers launches every small kernel from Python,
so the time of its steps says little about a serving engine. Acceptance is forced by a seeded random generator, whatever
the models answer.
"""

import time
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.clock import synchronize
from benchmarks.gpu.pair import Decoded, Timed
from benchmarks.gpu.presets import Preset, configs
from benchmarks.gpu.torch_model import Queries, TorchModel
from kv_transfer.arrays import Int32Array
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from speculator_service.scoring.importance import Aggregate, layer_scores, scored_layers
from speculator_service.scoring.selection import select


class TorchPair:
    engine = "torch"
    stock = False

    def __init__(self, chosen: Preset, device: str, kept: int, read: int) -> None:
        """kept: tokens that the target's cache holds. read: tokens that the speculator's cache holds."""
        target, speculator = configs(chosen)
        self._device = device
        self._target = TorchModel(target, device, kept, seed=0)
        self._speculator = TorchModel(speculator, device, read, seed=1)

    async def dense(self, ids: Int32Array) -> float:
        began = self._start(self._target)
        self._read_target(KeptPrompt.dense(ids))
        return self._since(began)

    async def skim(self, ids: Int32Array, options: SelectionOptions) -> Timed:
        began = self._start(self._target, self._speculator)
        steps = self._look_ahead(ids, options.look_ahead)
        parts = {"speculate": self._since(began)}
        scoring = time.perf_counter()
        importance = self._importance(steps, len(ids), options)
        parts["scoring"] = self._since(scoring)
        selecting = time.perf_counter()
        positions, _ = select(importance.cpu(), options)
        kept = positions.numpy().astype(np.int32)
        prompt = KeptPrompt(ids[kept], kept, len(ids))
        parts["select"] = self._since(selecting)
        prefill = time.perf_counter()
        self._read_target(prompt)
        parts["prefill"] = self._since(prefill)
        return Timed(self._since(began), prompt, parts)

    async def read(self, ids: Int32Array) -> float:
        began = self._start(self._speculator)
        self._read_speculator(ids)
        return self._since(began)

    async def read_kept(self, kept: KeptPrompt) -> float:
        began = self._start(self._target)
        self._read_target(kept)
        return self._since(began)

    async def plain(self, kept: KeptPrompt, tokens: int, *, stock: bool = False) -> Decoded:
        self._start(self._target)
        answer = [self._read_target(kept)]
        began = self._started()
        while len(answer) < tokens:
            answer.append(int(self._step([answer[-1]], kept, len(answer) - 1)[0]))
        return Decoded(answer, 1e-3 * self._since(began), len(answer) - 1)

    async def drafted(
        self, ids: Int32Array, kept: KeptPrompt, answer: list[int], drafts: int, acceptance: float, *, instant: bool
    ) -> Decoded:
        self._start(self._target, self._speculator)
        if not instant:
            self._read_speculator(ids)
        coin = np.random.default_rng(len(ids))
        found = [self._read_target(kept)]
        unread = list(found)  # tokens of the answer that the speculator has not read yet
        verifications = accepted = 0
        began = self._started()
        while len(found) < len(answer):
            proposed = [1] * drafts if instant else self._draft(unread, drafts, len(ids) + len(found) - len(unread))
            likeliest = self._step([found[-1], *proposed], kept, len(found) - 1).tolist()
            held = 0
            while held < drafts and coin.random() < acceptance:
                held += 1
            self._target.crop(kept.token_ids.size + len(found) + held)
            gained = [*proposed[:held], likeliest[held]]
            if not instant:
                self._speculator.crop(min(self._speculator.length, len(ids) + len(found) + held))
                unread = [*found, *gained][self._speculator.length - len(ids) :]
            found += gained
            verifications, accepted = verifications + 1, accepted + held
        return Decoded(found, 1e-3 * self._since(began), len(found) - 1, verifications, accepted)

    async def draft_ms(self, ids: Int32Array, drafts: int) -> float:
        self._start(self._speculator)
        token = self._read_speculator(ids)
        began = self._started()
        self._draft([token], drafts, len(ids))
        return self._since(began)

    def memory(self) -> dict[str, Any]:
        return {"peak_bytes": torch.cuda.max_memory_allocated() if self._device == "cuda" else None}

    def close(self) -> None:
        del self._target, self._speculator
        if self._device == "cuda":
            torch.cuda.empty_cache()

    def _started(self) -> float:
        synchronize(self._device)
        return time.perf_counter()

    def _since(self, began: float) -> float:
        synchronize(self._device)
        return 1e3 * (time.perf_counter() - began)

    def _start(self, *models: TorchModel) -> float:
        for model in models:
            model.clear()
        return self._started()

    def _on_device(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values, np.int64), device=self._device)

    def _read_target(self, kept: KeptPrompt) -> int:
        return int(self._target.read(self._on_device(kept.token_ids), self._on_device(kept.positions))[0])

    def _read_speculator(self, ids: Int32Array, queries: Queries | None = None) -> int:
        positions = torch.arange(len(ids), device=self._device)
        return int(self._speculator.read(self._on_device(ids), positions, queries=queries)[0])

    def _look_ahead(self, ids: Int32Array, count: int) -> list[Queries]:
        """The queries of the last prompt token and of `count` tokens after it."""
        steps: list[Queries] = [{} for _ in range(count + 1)]
        token = self._read_speculator(ids, steps[0])
        for index, queries in enumerate(steps[1:]):
            at = self._on_device([len(ids) + index])
            token = int(self._speculator.read(self._on_device([token]), at, queries=queries)[0])
        return steps

    @torch.inference_mode()
    def _importance(self, steps: list[Queries], prompt: int, options: SelectionOptions) -> torch.Tensor:
        layers = scored_layers(self._speculator.layers, options.layers)
        aggregate = Aggregate(
            options.aggregation, num_layers=len(layers), steps=len(steps), prompt=prompt, device=self._device
        )
        queries = torch.stack([torch.stack([step[layer] for step in steps]) for layer in layers])
        keys = [self._speculator.keys(prompt)[layer] for layer in layers]
        if self._device == "cuda":
            from speculator_service.scoring.triton_kernels import fill_table

            block = torch.zeros(1, dtype=torch.int32, device=self._device)
            fill_table(aggregate.table, queries, keys, block, self._speculator.scale, options.pool_kernel)
            aggregate.complete()
        else:
            for of_layer, cache in zip(queries, keys, strict=True):
                aggregate.add(layer_scores(of_layer, cache[0], self._speculator.scale, options.pool_kernel))
        return aggregate.importance(torch.ones(len(steps), dtype=torch.bool))

    def _draft(self, unread: list[int], drafts: int, position: int) -> list[int]:
        """Read the answer's tokens `unread`, the first of them at `position`, and draft greedily after them."""
        proposed: list[int] = []
        following = unread
        while len(proposed) < drafts:
            at = torch.arange(position, position + len(following), device=self._device)
            position += len(following)
            following = [int(self._speculator.read(self._on_device(following), at)[0])]
            proposed += following
        return proposed

    def _step(self, tokens: list[int], kept: KeptPrompt, place: int) -> torch.Tensor:
        """The target's most likely next token after each of `tokens`. place: index of the first one in the answer."""
        start = kept.context_length + place
        at = torch.arange(start, start + len(tokens), device=self._device)
        return self._target.read(self._on_device(tokens), at, last=len(tokens))
