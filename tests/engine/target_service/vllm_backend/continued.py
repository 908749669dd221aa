"""Shared by the tests of continued answers: cut an answer anywhere, let the engine continue it, and compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt
from target_service.engine import TargetEngine
from tests.engine.target_service.vllm_backend.cases import GREEDY
from tests.reference.generation_oracle import joined

CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalties": {"presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    "min_tokens": {"min_tokens": 30, "stop_token_ids": list(range(0, 724, 8)), "max_tokens": 40},
    "logit_bias": {"logit_bias": {5: 30.0}, "frequency_penalty": 1.5},
    "short": {"max_tokens": 24},
    "seed": {"temperature": 1.0, "seed": 11},
}
"""Changes to the parameters of a greedy request of 64 tokens, by name. Each makes what follows depend on the answer."""


@dataclass(frozen=True)
class Whole:
    """An answer that was not disturbed. An output may hold several tokens."""

    prompt: KeptPrompt
    sampling: dict[str, Any]
    tokens: list[int]
    outputs: list[GenerateOutput]

    @property
    def cuts(self) -> list[int]:
        """The numbers of tokens after each output except the last: where a replica may be lost."""
        return np.cumsum([o.completions[0].token_ids.size for o in self.outputs])[:-1].tolist()

    def after(self, cut: int) -> list[GenerateOutput]:
        """The outputs after the first `cut` tokens."""
        return self.outputs[self.cuts.index(cut) + 1 :]

    @property
    def reasons(self) -> tuple[str | None, int | str | None]:
        last = self.outputs[-1].completions[0]
        return last.finish_reason, last.stop_reason


async def whole(engine: TargetEngine, prompt: KeptPrompt, name: str, **changes: Any) -> Whole:
    sampling = {**GREEDY, **changes}
    outputs = [o async for o in engine.generate(GenerateRequest(name, prompt, sampling))]
    return Whole(prompt, sampling, joined(outputs)[0], outputs)


async def rest(engine: TargetEngine, answer: Whole, cut: int, name: str, *, told: bool = True) -> list[GenerateOutput]:
    """The outputs after the first `cut` tokens, from a new request. told: False: they are only part of the prompt."""
    request = GenerateRequest(
        f"{name}-{cut}",
        answer.prompt.extended(np.array(answer.tokens[:cut], np.int32)),
        {**answer.sampling, "max_tokens": answer.sampling["max_tokens"] - (0 if told else cut)},
        answered=cut if told else 0,
    )
    return [o async for o in engine.generate(request)]


def differs(answer: Whole, cut: int, outputs: Sequence[GenerateOutput]) -> list[str]:
    """What is not as in the undisturbed answer, by name."""
    tokens, logprobs, text = joined(outputs)
    wanted_tokens, wanted, wanted_text = joined(answer.after(cut))
    last = outputs[-1].completions[0]
    same = {
        "tokens": tokens == wanted_tokens,
        "text": text == wanted_text,
        "end": (last.finish_reason, last.stop_reason) == answer.reasons,
        "candidates": [[c.token_id for c in row] for row in logprobs] == [[c.token_id for c in row] for row in wanted],
        "decoded": [row[0].decoded for row in logprobs] == [row[0].decoded for row in wanted],
    }
    return [name for name, right in same.items() if not right]
