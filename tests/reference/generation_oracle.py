"""The oracle for a target's answer: transformers, eager attention, float32, explicit positions, no cache.

It reads the prompt and the engine's tokens in one forward. If each token is the oracle's most probable one after those
before it, greedy decoding would have chosen the same tokens.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from transformers import Cache

from kv_transfer.messages import GenerateOutput, KeptPrompt, TokenLogprob
from tests.reference.models import load_model


class GenerationOracle:
    """The model of folder `path`, read independently of any engine.

    window_counts: what the windows of sliding-window layers count, the kept tokens or the original positions. It may
    be left out for other models. new_cache: makes a cache that is not exact.
    """

    def __init__(
        self,
        path: str,
        *,
        window_counts: Literal["tokens", "positions"] | None = None,
        new_cache: Callable[[], Cache] | None = None,
    ) -> None:
        self._window_counts, self._new_cache = window_counts, new_cache
        self._model = load_model(path)

    @torch.inference_mode()
    def logprobs(self, prompt: KeptPrompt, answer: Sequence[int]) -> torch.Tensor:
        """float32 [len(answer), vocabulary]: log probabilities before each token of `answer`."""
        after = range(prompt.context_length, prompt.context_length + len(answer) - 1)
        ids = torch.tensor([[*prompt.token_ids.tolist(), *answer[:-1]]])
        positions = torch.tensor([[*prompt.positions.tolist(), *after]])
        cache = self._new_cache() if self._new_cache else None
        out = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._mask(positions),
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return out.logits[0, prompt.token_ids.size - 1 :].log_softmax(-1)

    @torch.inference_mode()
    def shrunk_logprobs(
        self, whole: KeptPrompt, hidden: Sequence[tuple[int, Sequence[Sequence[int]]]], answer: Sequence[int]
    ) -> torch.Tensor:
        """As `logprobs`, after a dense prompt that was shrunk in place, maybe several times.

        hidden: pairs of a place and spans of tokens. From the place on, no token sees those of the spans. So the keys
        and values of all others before the place are those of the whole text.
        """
        ids = torch.tensor([[*whole.token_ids.tolist(), *answer[:-1]]])
        slots = torch.arange(ids.numel())
        seen = slots[:, None] >= slots[None, :]
        for place, spans in hidden:
            for start, end in spans:
                seen[place:, start:end] = False
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
        out = self._model(input_ids=ids, position_ids=slots[None], attention_mask=mask, use_cache=False)
        return out.logits[0, whole.token_ids.size - 1 :].log_softmax(-1)

    def _mask(self, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Without a mask, transformers treats gaps in the positions as boundaries of packed sequences."""
        if self._window_counts is None:
            return torch.ones_like(positions)
        order = positions[0] if self._window_counts == "positions" else torch.arange(positions.numel())
        distance = order[:, None] - order[None, :]
        seen = {
            "full_attention": distance >= 0,
            "sliding_attention": (distance >= 0) & (distance < self._model.config.sliding_window),
        }
        lowest = torch.finfo(torch.float32).min
        return {kind: torch.zeros(s.shape).masked_fill(~s, lowest)[None, None] for kind, s in seen.items()}

    def wrong_tokens(self, prompt: KeptPrompt, answer: Sequence[int], tie: float = 0.0) -> int:
        """The number of tokens of `answer` that greedy decoding would not choose.

        tie: a log probability that is lower by at most this is right too. In bfloat16 either of two tokens may win.
        """
        rows = self.logprobs(prompt, answer)
        chosen = rows.gather(-1, torch.tensor(answer)[:, None])[:, 0]
        return int((rows.amax(-1) - chosen > tie).sum())

    def differences(
        self, prompt: KeptPrompt, answer: Sequence[int], logprobs: Sequence[Sequence[TokenLogprob]]
    ) -> list[float]:
        """|engine's log probability - ours| of all candidates that the engine returned."""
        ours = self.logprobs(prompt, answer)
        return [abs(c.logprob - ours[step, c.token_id].item()) for step, told in enumerate(logprobs) for c in told]

    def largest_difference(
        self, prompt: KeptPrompt, answer: Sequence[int], logprobs: Sequence[Sequence[TokenLogprob]]
    ) -> float:
        """The largest of the `differences`."""
        return max(self.differences(prompt, answer, logprobs))


def joined(outputs: Sequence[GenerateOutput], index: int = 0) -> tuple[list[int], list[list[TokenLogprob]], str]:
    """Tokens, logprobs and text of one answer, from a stream of deltas."""
    parts = [c for o in outputs for c in o.completions if c.index == index]
    tokens = [int(t) for p in parts for t in p.token_ids]
    return tokens, [row for p in parts for row in p.logprobs or []], "".join(p.text for p in parts)
