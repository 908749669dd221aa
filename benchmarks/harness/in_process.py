"""Timed calls of engines in this process, without router, Ray and network, and the prompts for them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from benchmarks.harness.chat_client import Timed
from demo_models.documents import make_document
from kv_transfer.layout import TextLayout
from kv_transfer.messages import DELTA, FINAL_ONLY, KeptPrompt, SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim.engines import PairEngines
from skim.prompts import render
from skim_common.models.info import load_tokenizer


@dataclass(frozen=True, eq=False)
class ChatPrompt:
    """One document and question: the messages that a client sends, and the prompt that the speculator reads."""

    messages: list[dict[str, Any]]
    rendered: RenderedPrompt
    layout: TextLayout

    def request(self, name: str, options: SelectionOptions, *, return_importance: bool = False) -> SelectRequest:
        """What a router sends to the speculator. name: the request's id."""
        return SelectRequest(name, self.rendered.token_ids, options, self.layout, return_importance)


@dataclass(frozen=True)
class InProcess:
    """Times requests to both engines of a pair. answer_tokens: the exact length of each answer."""

    pair: PairEngines
    keep_rate: float
    answer_tokens: int

    async def speculative(self, prompt: ChatPrompt, stream: bool) -> Timed:
        """Select and generate. parts: those of the engines, and the rest of each call (`..._hop`)."""
        began = time.perf_counter()
        request = prompt.request(self.pair.name("select"), SelectionOptions(keep_rate=self.keep_rate))
        selection = await self.pair.select(request)
        elapsed = 1e3 * (time.perf_counter() - began)
        answer = await self._generate(selection.kept, stream)
        parts = dict(selection.timings)
        parts["queue"] = parts.get("queue", 0.0) + answer.parts["queue"]
        parts["select_hop"] = elapsed - sum(selection.timings.values())
        first, end = answer.first_ms + elapsed, answer.end_ms + elapsed
        return replace(answer, first_ms=first, end_ms=end, parts={**answer.parts, **parts})

    async def dense(self, prompt: ChatPrompt, stream: bool) -> Timed:
        """Send the whole prompt to the target."""
        return await self._generate(KeptPrompt.dense(prompt.rendered.token_ids), stream)

    async def _generate(self, kept: KeptPrompt, stream: bool) -> Timed:
        sampling = {"max_tokens": self.answer_tokens, "temperature": 0.0, "ignore_eos": True}
        sampling["output_kind"] = DELTA if stream else FINAL_ONLY
        plain = DecodeOptions(method="none")
        first, tokens, timings = 0.0, 0, dict[str, float]()
        began = time.perf_counter()
        async for output in self.pair.generate(kept, sampling, decode=plain):
            end = time.perf_counter()
            first, timings = first or end, timings or dict(output.timings)
            tokens += int(output.completions[0].token_ids.size)
        elapsed = 1e3 * (first - began)
        queue, prefill = timings.get("queue", 0.0), timings.get("prefill", elapsed)
        parts = {"queue": queue, "prefill": prefill, "generate_hop": elapsed - queue - prefill}
        return Timed(elapsed, 1e3 * (end - began), tokens, parts)


def unseen_prompts(model: str, tokens: int, seed: int) -> Iterator[ChatPrompt]:
    """Endless different documents: apart from the template, a prefix cache holds nothing of them.

    model: folder of the tokenizer. tokens: length of each prompt, approximately.
    """
    tokenizer = load_tokenizer(model)
    for number in count(seed):
        messages = make_document(tokens, number).messages
        rendered = render(messages, tokenizer)
        yield ChatPrompt(messages, rendered, rendered.layout(PrefillOptions()))
