"""The arguments of the load generator fit what the benchmarks measure, and vLLM's parser accepts them."""

import gc
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer
from vllm.benchmarks.datasets import get_samples

from benchmarks.harness.load_generator import Load, arguments, command_line, send
from skim_common.errors import SkimError

MODEL = Path(__file__).parents[4] / "demo_models" / "target"


def parsed(seed: int = 0, rate: float | None = 0.5):
    load = Load(MODEL, "bench", prompt_tokens=256, answer_tokens=4, seed=seed)
    return arguments(command_line(load, 6, {"cache_salt": "a"}, rate, 1500.0))


def prompts(seed: int) -> list[str]:
    return [sample.prompt for sample in get_samples(parsed(seed), AutoTokenizer.from_pretrained(MODEL))]


def test_arrivals_are_poisson_and_the_objective_is_the_first_tokens() -> None:
    args = parsed()
    assert (args.request_rate, args.burstiness) == (0.5, 1.0)
    assert args.goodput == ["ttft:1500.0"]
    assert args.extra_body == {"cache_salt": "a"}
    assert args.ready_check_timeout_sec == 0, "a check would send the first prompt, and a prefix cache would hold it"
    alone = parsed(rate=None)
    assert (alone.max_concurrency, alone.request_rate) == (1, np.inf)


def test_no_two_prompts_begin_alike() -> None:
    first = prompts(seed=0)
    assert len({prompt[:64] for prompt in first}) == 6
    assert first == prompts(seed=0) != prompts(seed=1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert all(abs(len(tokenizer(prompt).input_ids) - 256) < 40 for prompt in first)


@pytest.mark.parametrize("completed", [0, 1])
def test_the_heap_is_as_it_was(monkeypatch: pytest.MonkeyPatch, completed: int) -> None:
    """vLLM's generator freezes the heap. Nanobind would report the frozen objects as leaks when the process ends."""

    async def main_async(args: object) -> dict[str, object]:
        gc.freeze()
        return {"completed": completed, "errors": ["no answer"]}

    monkeypatch.setattr("vllm.benchmarks.serve.main_async", main_async)
    load = Load(MODEL, "bench", prompt_tokens=256, answer_tokens=4, seed=0)
    if completed:
        send(load, "http://127.0.0.1:1", 1, {})
    else:
        with pytest.raises(SkimError, match=r"http://127\.0\.0\.1:1 answered none of 1 requests: no answer"):
            send(load, "http://127.0.0.1:1", 1, {})
    assert gc.get_freeze_count() == 0
