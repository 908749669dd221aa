"""Speculative prefill in plain transformers: scoring, choice of chunks, and prefill with restored positions.

It shares no code with serving, so the evaluation does not share its bugs. Scoring: maximum over layers and heads, mean
over look-ahead steps, average pooling. Chunks are ranked by their mean. The first and the last tokens are always kept.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizer import END
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

LOOK_AHEAD, POOL, CHUNK = 8, 13, 32
HEAD, TAIL = 2, 32  # tokens that are always kept: the start of the chat template, and the question


class Reader:
    """A model in bf16 that prefills a document once and then several questions about it."""

    def __init__(self, folder: Path):
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self.cache = DynamicCache()
        self.length = 0

    @torch.no_grad()
    def read_document(self, ids: list[int]) -> None:
        self.cache, self.length = DynamicCache(), len(ids)
        self.model(torch.tensor([ids]), past_key_values=self.cache, logits_to_keep=1)

    @torch.no_grad()
    def choices_after_document(self, ids: list[int], last: int) -> list[int]:
        """The most likely next token after each of the last `last` tokens of document + ids."""
        positions = torch.arange(self.length, self.length + len(ids))[None]
        out = self.model(torch.tensor([ids]), position_ids=positions, past_key_values=self.cache, logits_to_keep=last)
        self.cache.crop(-len(ids))
        return out.logits[0].argmax(-1).tolist()

    @torch.no_grad()
    def choices(self, ids: list[int], positions: list[int], last: int) -> list[int]:
        """The most likely next token after each of the last `last` tokens of `ids`, prefilled at `positions`."""
        # With a cache, transformers does not take gaps in the positions for packed sequences.
        out = self.model(
            torch.tensor([ids]),
            position_ids=torch.tensor([positions]),
            past_key_values=DynamicCache(),
            logits_to_keep=last,
        )
        return out.logits[0].argmax(-1).tolist()

    @torch.no_grad()
    def score(self, question: list[int]) -> tuple[Tensor, list[int]]:
        """Importance [M] of the M tokens of document + question, and the look-ahead tokens (up to an END)."""
        m = self.length + len(question)
        if len(question) > 1:
            self._step(question[:-1], self.length)
        self.model.set_attn_implementation("eager")
        token, steps, tokens = question[-1], [], []
        for step in range(LOOK_AHEAD + 1):
            out = self._step([token], m - 1 + step, output_attentions=True)
            layers = torch.stack([attention[0, :, 0, :m].float() for attention in out.attentions])
            steps.append(layers.flatten(0, 1).amax(0))
            token = int(out.logits[0, -1].argmax())
            tokens.append(token)
            if token == END:
                break
        self.model.set_attn_implementation("sdpa")
        self.cache.crop(self.length - self.cache.get_seq_length())
        return torch.stack(steps).mean(0), tokens[:LOOK_AHEAD]

    def _step(self, ids: list[int], start: int, **options):
        positions = torch.arange(start, start + len(ids))[None]
        return self.model(torch.tensor([ids]), position_ids=positions, past_key_values=self.cache, **options)


def chunk_order(importance: Tensor) -> list[int]:
    """Chunks of the prompt by the mean of their pooled importance [M], most important first."""
    pooled = F.avg_pool1d(importance[None, None], POOL, 1, POOL // 2, count_include_pad=False)[0, 0]
    chunks = math.ceil(len(pooled) / CHUNK)
    padded = F.pad(pooled, (0, chunks * CHUNK - len(pooled)), value=math.nan)
    return padded.view(chunks, CHUNK).nanmean(1).argsort(descending=True).tolist()


def keep_chunks(order: list[int], tokens: int, rate: float) -> list[int]:
    """Ascending positions of the first ceil(rate * chunks) chunks of `order` and of the protected tokens."""
    kept = {*range(HEAD), *range(max(HEAD, tokens - TAIL), tokens)}
    for chunk in order[: math.ceil(rate * len(order))]:
        kept.update(range(chunk * CHUNK, min(tokens, (chunk + 1) * CHUNK)))
    return sorted(kept)


def keep_last(tokens: int, rate: float) -> list[int]:
    """The last ceil(rate * tokens) positions of the prompt, and the protected ones."""
    return [*range(HEAD), *range(max(HEAD, tokens - max(TAIL, math.ceil(rate * tokens))), tokens)]
