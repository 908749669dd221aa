"""What an engine must answer: transformers with eager attention in float32, on CPU.

It shares no code with the engines. tests/reference has the same comparison for the tests.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import avg_pool1d
from transformers import AutoModelForCausalLM

from kv_transfer.messages import GenerateOutput, KeptPrompt
from kv_transfer.options import SelectionOptions

POOL = SelectionOptions().pool_kernel
TIE = 0.05
"""In bfloat16, either of two tokens may win whose log probabilities differ by less."""


class Oracle:
    """The model of folder `path`."""

    def __init__(self, path: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.inference_mode()
    def importance(self, ids: np.ndarray, look_ahead: Sequence[int]) -> torch.Tensor:
        """float32 [M]: the importance of a prompt by the default options, for these look-ahead tokens."""
        past, prompt = None, len(ids)
        if prompt > 1:
            past = self._model(torch.tensor(ids[None, :-1].astype(np.int64)), use_cache=True).past_key_values
        steps = []
        for token in (int(ids[-1]), *look_ahead):
            out = self._model(torch.tensor([[token]]), past_key_values=past, use_cache=True, output_attentions=True)
            past = out.past_key_values
            weights = torch.cat([layer[0, :, 0, :prompt] for layer in out.attentions])
            # Rescaled to the prompt alone, the weights of its tokens are a softmax over the prompt.
            steps.append(avg_pool1d(weights / weights.sum(-1, keepdim=True), POOL, 1, POOL // 2).amax(0))
        return torch.stack(steps).mean(0)

    @torch.inference_mode()
    def logprobs(self, prompt: KeptPrompt, answer: Sequence[int]) -> torch.Tensor:
        """float32 [len(answer), vocabulary]: log probabilities before each token of `answer`."""
        after = range(prompt.context_length, prompt.context_length + len(answer) - 1)
        ids = torch.tensor([[*prompt.token_ids.tolist(), *answer[:-1]]])
        # Without this mask, transformers takes gaps in the positions for boundaries of packed sequences.
        out = self._model(
            input_ids=ids,
            position_ids=torch.tensor([[*prompt.positions.tolist(), *after]]),
            attention_mask=torch.ones_like(ids),
            use_cache=False,
        )
        return out.logits[0, prompt.token_ids.size - 1 :].log_softmax(-1)

    def matches(self, prompt: KeptPrompt, answer: Sequence[int], tie: float = 0.0) -> int:
        """The number of tokens of `answer` that are the most probable ones after those before them.

        tie: a log probability that is lower by at most this counts too. In bfloat16 either of two tokens may win.
        """
        rows = self.logprobs(prompt, answer)
        chosen = rows.gather(-1, torch.tensor(answer)[:, None])[:, 0]
        return int((rows.amax(-1) - chosen <= tie).sum())

    def gap(self, prompt: KeptPrompt, answer: Sequence[int], other: int) -> float:
        """How much more probable the last token of `answer` is than `other` in its place, as |log ratio|."""
        row = self.logprobs(prompt, answer)[-1]
        return abs(float(row[answer[-1]] - row[other]))


class Answer:
    """The tokens of a whole answer, and the log probabilities that the engine gave for their candidates."""

    def __init__(self, outputs: Sequence[GenerateOutput]) -> None:
        parts = [completion for output in outputs for completion in output.completions]
        self.cached_tokens = outputs[0].cached_tokens
        self.tokens = [int(token) for part in parts for token in part.token_ids]
        self._rows = [row for part in parts for row in part.logprobs or []]

    def differences(self, oracle: Oracle, prompt: KeptPrompt) -> list[float]:
        """|the engine's log probability - the oracle's| of each candidate of each token."""
        ours = oracle.logprobs(prompt, self.tokens)
        told = [(step, c.token_id, c.logprob) for step, row in enumerate(self._rows) for c in row]
        return [abs(logprob - float(ours[step, token])) for step, token, logprob in told]
