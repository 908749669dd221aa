"""What transformers says of a tiny model: log probabilities at explicit positions, and a row of attention weights.

It reads the prompt and an engine's tokens in one forward, with eager attention in float32.
"""

from collections.abc import Sequence
from typing import Any

import torch

from kv_transfer.messages import KeptPrompt
from speculator_service.scoring.importance import POOL_KERNEL


class Oracle:
    """The model of a folder, read independently of any engine."""

    def __init__(self, folder: str, *, has_images: bool = False) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind = AutoModelForImageTextToText if has_images else AutoModelForCausalLM
        self._model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    @torch.inference_mode()
    def logprobs(self, prompt: KeptPrompt, answer: Sequence[int]) -> torch.Tensor:
        """float32 [len(answer), vocabulary]: log probabilities before each token of `answer`.

        Windows count kept tokens, as an engine's do.
        """
        after = range(prompt.context_length, prompt.context_length + len(answer) - 1)
        ids = torch.tensor([[*prompt.token_ids.tolist(), *answer[:-1]]])
        positions = torch.tensor([[*prompt.positions.tolist(), *after]])
        # Without a mask, transformers treats gaps in the positions as boundaries of packed sequences.
        out = self._model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False)
        return out.logits[0, prompt.token_ids.size - 1 :].float().log_softmax(-1)

    @torch.inference_mode()
    def last_row(self, token_ids: Sequence[int]) -> torch.Tensor:
        """float32 [tokens]: how much the last token attends to each one and its neighbours (POOL_KERNEL), the maximum
        over heads and whole layers."""
        ids = torch.tensor([list(token_ids)])
        out = self._model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True, use_cache=False)
        rows = [weights[0, :, -1] for weights in self._whole(out.attentions) if weights is not None]
        pooled = torch.nn.functional.avg_pool1d(torch.cat(rows).float(), POOL_KERNEL, 1, POOL_KERNEL // 2)
        return pooled.amax(0)

    def _whole(self, attentions: Sequence[Any]) -> list[Any]:
        """Those of layers that attend to the whole prompt, by keys of their own."""
        shared = getattr(self._model.config.get_text_config(), "num_kv_shared_layers", 0) or 0
        attentions = attentions[: len(attentions) - shared]
        kinds = getattr(self._model.config.get_text_config(), "layer_types", None) or ()
        kinds = kinds[: len(kinds) - shared]
        if len(kinds) != len(attentions):  # transformers returns none of linear attention and state spaces
            kinds = [kind for kind in kinds if "attention" in kind and "linear" not in kind]
        if len(kinds) != len(attentions) or "full_attention" not in kinds:
            return list(attentions)
        return [weights for weights, kind in zip(attentions, kinds, strict=True) if kind == "full_attention"]
