"""Requests that are refused before they reach an engine, with the numbers in the error."""

from dataclasses import replace

import numpy as np
import pytest

from kv_transfer.limits import check_request, check_speculator_length, check_target_length, reserved_names
from kv_transfer.messages import GenerateRequest, KeptPrompt
from skim_common.errors import InvalidRequestError
from skim_common.models.info import ModelInfo

INFO = ModelInfo("m", "LlamaForCausalLM", 100, "f", max_model_len=40, max_position=64, engine="mock")


def request(kept: int, context: int, sampling: dict, token: int = 7) -> GenerateRequest:
    return GenerateRequest(
        "r", KeptPrompt(np.full(kept, token, np.int32), np.arange(kept, dtype=np.int32), context), sampling
    )


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request(10, 60, {"max_tokens": 5}), ["65", "64"]),
        (request(10, 60, {}), ["76", "64"]),
        (request(36, 37, {"max_tokens": 5}), ["41", "40"]),
        (request(10, 64, {"max_tokens": None}), ["65", "64"]),
        (request(40, 40, {"max_tokens": None}), ["41", "40"]),
        (request(2, 2, {"max_tokens": 1}, token=100), ["100"]),
        (request(2, 2, {"max_tokens": 1}, token=-1), ["-1", "100"]),
        (request(2, 2, {"max_tokens": 0}), ["max_tokens", "0"]),
        (request(2, 2, {"max_tokens": "9"}), ["max_tokens", "'9'"]),
        (request(2, 2, {"extra_args": {"skim_kept_positions": b""}}), ["skim_kept_positions"]),
        (request(2, 2, {"extra_args": {"skim_later": 1}}), ["skim_later"]),
        (request(2, 2, {"extra_args": [1]}), ["extra_args"]),
        (request(2, 3, {"prompt_logprobs": 0}), ["prompt_logprobs"]),
    ],
)
def test_refused(bad: GenerateRequest, words: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as error:
        check_request(bad, INFO)
    assert all(word in str(error.value) for word in words)


def test_taken_up_to_the_limits() -> None:
    assert check_request(request(10, 60, {"max_tokens": 4}), INFO) == 4
    assert check_request(request(36, 37, {"max_tokens": 4}), INFO) == 4
    assert check_request(request(2, 2, {"prompt_logprobs": 0}), INFO) == 16


def test_no_max_tokens_means_what_there_is_room_for() -> None:
    assert check_request(request(10, 60, {"max_tokens": None}), INFO) == 4
    assert check_request(request(36, 37, {"max_tokens": None}), INFO) == 4


WIDE = replace(INFO, max_model_len=500, max_position=800)


@pytest.mark.parametrize(
    ("info", "limit", "name"),
    [
        (WIDE, 500, "max_model_len"),
        (replace(WIDE, max_model_len=800), 800, "max_position_embeddings (with RoPE scaling)"),
        (replace(WIDE, max_model_len=900), 800, "max_position_embeddings (with RoPE scaling)"),
    ],
)
def test_prompt_and_answer_must_fit(info: ModelInfo, limit: int, name: str) -> None:
    check_target_length(limit - 16, limit - 16, 16, info)
    for prompt, answer in ((limit - 15, 16), (limit - 16, 17), (limit + 1, 0), (1, limit)):
        with pytest.raises(InvalidRequestError) as caught:
            check_target_length(prompt, prompt, answer, info)
        message = str(caught.value)
        assert f"the prompt has {prompt} tokens and max_tokens is {answer}, together {prompt + answer}" in message
        assert f"{name} is {limit}" in message


def test_reserved_names() -> None:
    assert reserved_names(["a", "skim_b", "kv_transfer_params", "skimming", "kv"]) == [
        "skim_b",
        "kv_transfer_params",
        "skimming",
    ]


LONG = replace(INFO, vocab_size=50_000, max_model_len=2**24, max_position=2**24)


READER = ModelInfo("m", "LlamaForCausalLM", 1000, "f", max_model_len=500, max_position=800, engine="mock")


@pytest.mark.parametrize("info", [READER, replace(READER, max_model_len=900, max_position=500)])
def test_prompt_and_look_ahead_must_fit(info):
    check_speculator_length(492, 8, info)
    check_speculator_length(500, 0, info)
    with pytest.raises(InvalidRequestError, match=r"has 493 tokens and look_ahead is 8, .* at most 500; "):
        check_speculator_length(493, 8, info)
