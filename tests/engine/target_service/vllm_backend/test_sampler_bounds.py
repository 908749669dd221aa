"""What vLLM's V2 sampler has no room for raises in the worker, which ends an engine: Skim refuses it before."""

import ast
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.worker.gpu import sample
from vllm.v1.worker.gpu.sample import bad_words, logit_bias, logprob, states

from router.dispatch.sampling_limits import MAX_ENTRIES, MAX_STOP_TOKEN_IDS, SEEDS, check_sampling
from skim_common.errors import InvalidRequestError
from target_service.vllm_backend.v1_repairs import TargetSamplingParams

CPU = torch.device("cpu")
END_TOKENS = 32
"""More than models have."""


class Row:
    """In place of a tensor in memory that a GPU shares."""

    def __init__(self, size: int, dtype: torch.dtype, **_: Any) -> None:
        self.np = np.zeros(size, torch.empty(0, dtype=dtype).numpy().dtype)

    def copy_to_uva(self) -> None:
        pass

    def stage_write(self, index: int, start: int, x: Any) -> None:
        pass


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Any:
    """add(params): what vLLM's states do with a new request. Raises as they do."""
    for module in (bad_words, logit_bias, logprob, states):
        for name in ("UvaBackedTensor", "StagedWriteTensor"):
            monkeypatch.setattr(module, name, Row, raising=False)
    made = [
        bad_words.BadWordsState(SimpleNamespace(max_num_reqs=1, device=CPU)),
        logprob.LogprobTokenIdsState(1, CPU),
        states.SamplingStates(1, 2000),
    ]

    def add(params: SamplingParams) -> None:
        logit_bias.LogitBiasState(1, CPU).add_request(0, 10, params)
        for state in made:
            state.add_request(0, params)

    return add


def entries(name: str, count: int) -> dict[str, Any]:
    values = {"logit_bias": dict.fromkeys(range(count), 1.0), "bad_words": [str(i) for i in range(count)]}
    return {name: values.get(name, list(range(count)))}


def params(sampling: dict[str, Any], end_tokens: int = 0) -> SamplingParams:
    made = TargetSamplingParams(**sampling)
    made._bad_words_token_ids = [[1]] * len(sampling.get("bad_words") or ())
    made._all_stop_token_ids = {*(sampling.get("stop_token_ids") or ()), *range(1000, 1000 + end_tokens)}
    return made


CASES = [
    *((entries(name, most), entries(name, most + 1)) for name, most in MAX_ENTRIES.items()),
    ({"seed": SEEDS[-1]}, {"seed": SEEDS[-1] + 1}),
]


@pytest.mark.parametrize(("allowed", "refused"), CASES, ids=[*MAX_ENTRIES, "seed"])
def test_the_bounds_are_vllms(add: Any, allowed: dict[str, Any], refused: dict[str, Any]) -> None:
    check_sampling(allowed)
    add(params(allowed))
    with pytest.raises(InvalidRequestError):
        check_sampling(refused)
    with pytest.raises((ValueError, OverflowError)):
        add(params(refused))


def test_there_is_room_for_the_end_tokens_of_a_model(add: Any) -> None:
    most = {"min_tokens": 1} | entries("stop_token_ids", MAX_STOP_TOKEN_IDS)
    check_sampling(most)
    add(params(most, END_TOKENS))
    with pytest.raises(InvalidRequestError):
        check_sampling({"min_tokens": 1} | entries("stop_token_ids", MAX_STOP_TOKEN_IDS + 1))
    with pytest.raises(ValueError, match="Too many stop tokens"):
        add(params({"min_tokens": 1} | entries("stop_token_ids", MAX_STOP_TOKEN_IDS + 1), END_TOKENS))


def test_bad_words_have_at_most_as_many_tokens_as_the_sampler_has_room_for(add: Any) -> None:
    """vLLM's own check counts the words only."""
    tokenizer = SimpleNamespace(max_token_id=9, encode=lambda text, add_special_tokens: [1] * len(text.strip()))
    right, long = TargetSamplingParams(bad_words=["x" * 1024]), TargetSamplingParams(bad_words=["x" * 1025])
    right.update_from_tokenizer(tokenizer)
    add(right)
    with pytest.raises(VLLMValidationError, match="bad_words has 1025 tokens, but the limit is 1024"):
        long.update_from_tokenizer(tokenizer)
    with pytest.raises(ValueError, match="Too many total bad word tokens"):
        add(long)


def test_vllms_states_have_no_other_bounds() -> None:
    """A new one must get a row in `router.dispatch.sampling_limits`."""
    found: Counter[str] = Counter()
    for file in Path(sample.__path__[0]).glob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name == "add_request":
                found[file.stem] += sum(isinstance(node, ast.Raise | ast.Assert) for node in ast.walk(function))
    assert +found == Counter(bad_words=2, logit_bias=3, logprob=1)
