"""The engines called from this process, without router, Ray or wire; and the prompts for them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from benchmarks.chat_client import Timed
from cluster.commands.demo_document import make_document
from kv_transfer.messages import DecodeOptions, GenerateRequest, Int32Array, KeptPrompt, SelectionOptions, SelectRequest
from router.protection import droppable_tokens, spans_of
from speculator_service.engine import SpeculatorEngine
from speculator_service.service import SpeculatorService
from target_service.engine import TargetEngine

_DELTA, _FINAL_ONLY = 1, 2  # vLLM's RequestOutputKind


@dataclass(frozen=True, eq=False)
class Prompt:
    """One document and question: as a client sends it, and as the speculator gets it. spans: the protected ones."""

    messages: list[dict[str, Any]]
    ids: Int32Array
    spans: Int32Array


@dataclass(frozen=True)
class InProcess:
    """Both engines. Requests are numbered, so that no two have one name. answer_tokens: of each answer, exactly."""

    speculator: SpeculatorEngine
    target: TargetEngine
    keep_rate: float
    answer_tokens: int
    numbers: Iterator[int] = field(default_factory=count)

    async def speculative(self, prompt: Prompt, stream: bool) -> Timed:
        """Select and generate. parts: the engines' own, and the rest of each call (`..._hop`)."""
        began = time.perf_counter()
        options = SelectionOptions(keep_rate=self.keep_rate)
        request = SelectRequest(f"select-{next(self.numbers)}", prompt.ids, options, prompt.spans)
        selection = await SpeculatorService(self.speculator).select(request)
        elapsed = 1e3 * (time.perf_counter() - began)
        answer = await self._generate(selection.kept, stream)
        parts = dict(selection.timings)
        parts["queue"] = parts.get("queue", 0.0) + answer.parts["queue"]
        parts["select_hop"] = elapsed - sum(selection.timings.values())
        first, end = answer.first_ms + elapsed, answer.end_ms + elapsed
        return replace(answer, first_ms=first, end_ms=end, parts={**answer.parts, **parts})

    async def dense(self, prompt: Prompt, stream: bool) -> Timed:
        """The whole prompt to the target."""
        return await self._generate(KeptPrompt.dense(prompt.ids), stream)

    async def _generate(self, kept: KeptPrompt, stream: bool) -> Timed:
        sampling = {"max_tokens": self.answer_tokens, "temperature": 0.0, "ignore_eos": True}
        sampling["output_kind"] = _DELTA if stream else _FINAL_ONLY
        plain = DecodeOptions(method="none")
        request = GenerateRequest(f"generate-{next(self.numbers)}", kept, sampling, decode=plain)
        first, tokens, timings = 0.0, 0, dict[str, float]()
        began = time.perf_counter()
        async for output in self.target.generate(request):
            end = time.perf_counter()
            first, timings = first or end, timings or dict(output.timings)
            tokens += int(output.completions[0].token_ids.size)
        elapsed = 1e3 * (first - began)
        queue, prefill = timings.get("queue", 0.0), timings.get("prefill", elapsed)
        parts = {"queue": queue, "prefill": prefill, "generate_hop": elapsed - queue - prefill}
        return Timed(elapsed, 1e3 * (end - began), tokens, parts)

    def close(self) -> None:
        """Stop both engines."""
        self.speculator.close()
        self.target.close()


def unseen_prompts(model: str, tokens: int, seed: int) -> Iterator[Prompt]:
    """One document after another, without end: but for the template, nothing of them is in a prefix cache.

    model: whose tokenizer; tokens: length of each, about.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    for number in count(seed):
        messages = make_document(tokens, number).messages
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        protected = ~droppable_tokens(text, messages, encoded["offset_mapping"])
        protected[0] = True
        yield Prompt(messages, np.asarray(encoded["input_ids"], np.int32), spans_of(protected))
