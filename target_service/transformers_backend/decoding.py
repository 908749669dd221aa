"""One request on a transformers model: prefill the kept tokens at their original positions, then decode n answers."""

import time
from typing import Any

import torch
from transformers import DynamicCache

from kv_transfer.messages import KeptPrompt, TokenLogprob
from target_service.answer import NewToken
from target_service.sampling import Sampling


class Decoding:
    """The state of one request: its cache, its position, and a random generator per answer.

    began: time.perf_counter() at the start of the first step. prompt_logprobs: as in GenerateOutput, after that step.
    """

    def __init__(self, model: Any, tokenizer: Any, prompt: KeptPrompt, sampling: Sampling) -> None:
        self._model, self._tokenizer, self._prompt, self._sampling = model, tokenizer, prompt, sampling
        self._cache = DynamicCache(config=model.config)
        self._tokens: torch.Tensor | None = None
        self._position = prompt.context_length
        self._generators = [torch.Generator(model.device) for _ in range(sampling.n)]
        for index, generator in enumerate(self._generators):
            generator.seed() if sampling.seed is None else generator.manual_seed(sampling.seed + index)
        self.began = 0.0
        self.prompt_logprobs: list[list[TokenLogprob] | None] | None = None

    @torch.inference_mode()
    def step(self) -> list[NewToken]:
        """The next token of each of the n answers."""
        if self._tokens is None:
            self.began = time.perf_counter()
            logits = self._prefill()
        else:
            positions = torch.full_like(self._tokens, self._position)
            logits = self._forward(self._tokens, positions, logits_to_keep=1)[:, -1]
            self._position += 1
        logprobs = logits.float().log_softmax(-1)
        chosen = [self._choose(row, generator) for row, generator in zip(logprobs, self._generators, strict=True)]
        self._tokens = torch.tensor(chosen, device=logprobs.device)[:, None]
        count = self._sampling.logprobs or 0
        return [
            NewToken(token, row[token].item(), self._candidates(row, token, count))
            for row, token in zip(logprobs, chosen, strict=True)
        ]

    def _prefill(self) -> torch.Tensor:
        """Prefill the prompt once for all n answers. Returns the logits [n, vocabulary] of the first token."""
        device = self._model.device
        ids = torch.as_tensor(self._prompt.token_ids, dtype=torch.long, device=device)[None]
        positions = torch.as_tensor(self._prompt.positions, dtype=torch.long, device=device)[None]
        wanted = self._sampling.prompt_logprobs
        logits = self._forward(ids, positions, logits_to_keep=1 if wanted is None else 0)
        if wanted is not None:
            rows = logits[0, :-1].float().log_softmax(-1)
            following = zip(rows, ids[0, 1:].tolist(), strict=True)
            self.prompt_logprobs = [None, *(self._candidates(row, token, wanted) for row, token in following)]
        self._cache.batch_repeat_interleave(self._sampling.n)
        return logits[:, -1].expand(self._sampling.n, -1)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, *, logits_to_keep: int) -> torch.Tensor:
        # Without a mask, transformers treats gaps in the positions as boundaries of packed sequences.
        seen = self._cache.get_seq_length() + ids.shape[1]
        mask = torch.ones((ids.shape[0], seen), dtype=torch.long, device=ids.device)
        out = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        return out.logits

    def _choose(self, logprobs: torch.Tensor, generator: torch.Generator) -> int:
        if self._sampling.temperature == 0:
            return int(logprobs.argmax())
        probabilities, ids = (logprobs / self._sampling.temperature).softmax(-1).sort(descending=True)
        # Keep the smallest set that reaches top_p: drop a token if the more probable tokens already reach it.
        probabilities[probabilities.cumsum(-1) - probabilities >= self._sampling.top_p] = 0
        return int(ids[torch.multinomial(probabilities, 1, generator=generator)])

    def _candidates(self, logprobs: torch.Tensor, token: int, count: int) -> list[TokenLogprob]:
        """The token itself and the `count` most probable tokens, without duplicates."""
        top = logprobs.topk(min(count, logprobs.numel())).indices.tolist() if count else []
        rank = int((logprobs > logprobs[token]).sum()) + 1
        ranked = [(token, rank), *((id, at + 1) for at, id in enumerate(top) if id != token)]
        return [TokenLogprob(id, logprobs[id].item(), r, self._tokenizer.decode([id])) for id, r in ranked]
