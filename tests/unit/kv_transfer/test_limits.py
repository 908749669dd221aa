"""Requests that are refused before they reach an engine, with the numbers in the error."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from kv_transfer.limits import check_request, check_speculator_length, check_target_length, reserved_names
from kv_transfer.messages import GenerateRequest, KeptPrompt
from kv_transfer.sampling_limits import MAX_LOGPROBS, MAX_READ_TOKENS, MAX_SCHEMA_COUNT, first_logprobs
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


@pytest.mark.parametrize(
    ("prompt", "sampling", "count"),
    [
        (4100, {"prompt_logprobs": 20}, 4100 * 21),
        (100, {"prompt_logprobs": -1}, 100 * 50_001),
        (100, {"logprobs": -1, "n": 4}, 4 * 50_001),
        (100, {"logprob_token_ids": [3, 4], "n": 2}, 2 * 3),
        (100, {"prompt_logprobs": 0, "logprobs": 4, "n": 3}, 3 * (100 + 5)),
        (100, {"prompt_logprobs": None, "logprobs": None}, 0),
    ],
)
def test_the_log_probabilities_of_a_reply_are_counted_before_it_is_made(prompt, sampling, count) -> None:
    assert first_logprobs(prompt, sampling, LONG.vocab_size) == count


@pytest.mark.parametrize("most", [MAX_LOGPROBS // 21, MAX_LOGPROBS // 2])
def test_a_prompt_with_too_many_log_probabilities_is_refused_before_it_runs(most: int) -> None:
    sampling = {"prompt_logprobs": MAX_LOGPROBS // most - 1, "max_tokens": 1}
    assert check_request(request(most, most, sampling), LONG) == 1
    with pytest.raises(InvalidRequestError, match=f"log probabilities or more, but the limit is {MAX_LOGPROBS}"):
        check_request(request(most + 1, most + 1, sampling), LONG)


def test_a_long_prompt_has_fewer_answers() -> None:
    assert check_request(request(MAX_READ_TOKENS // 64, 2**20, {"n": 64, "max_tokens": 1}), LONG) == 1
    with pytest.raises(InvalidRequestError, match=f"n is 65 .* may have {MAX_READ_TOKENS}"):
        check_request(request(MAX_READ_TOKENS // 64, 2**20, {"n": 65, "max_tokens": 1}), LONG)


def schema(name: str, count: float, depth: int = 0) -> dict:
    inner: dict = {"type": "array", name: count}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, inner]}}}
    return inner


@pytest.mark.parametrize("name", ["minItems", "maxItems", "minProperties", "maxProperties"])
@pytest.mark.parametrize("written", [dict, json.dumps])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_schema_that_counts_to_millions_is_refused(name, written, depth) -> None:
    """A body of 60 bytes would take gigabytes of a target's memory."""
    for field in ("json", "structural_tag") if written is json.dumps else ("json",):
        constraint = {field: written(schema(name, MAX_SCHEMA_COUNT + 1, depth))}
        with pytest.raises(InvalidRequestError, match=f"{name} of a schema is {MAX_SCHEMA_COUNT + 1}"):
            check_request(request(2, 2, {"structured_outputs": constraint}), INFO)
        check_request(
            request(2, 2, {"structured_outputs": {field: written(schema(name, MAX_SCHEMA_COUNT, depth))}}), INFO
        )


@pytest.mark.parametrize(
    "constraint", [None, {"json": "{"}, {"json": "[" * 100}, {"regex": "a"}, {"json": {"minItems": "x"}}]
)
def test_what_is_no_schema_is_left_to_vllm(constraint) -> None:
    check_request(request(2, 2, {"structured_outputs": constraint}), INFO)


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"allowed_token_ids": list(range(1025))}, "allowed_token_ids has 1025 entries, but the limit is 1024"),
        ({"bad_words": ["x"] * 129}, "bad_words has 129 entries, but the limit is 128"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias has 1025 entries, but the limit is 1024"),
        ({"logprob_token_ids": [1] * 129}, "logprob_token_ids has 129 entries"),
        (
            {"min_tokens": 1, "stop_token_ids": [1] * 97},
            "stop_token_ids has 97 entries, but the limit is 96",
        ),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
    ],
)
def test_what_would_end_an_engine_is_refused(sampling, reason):
    with pytest.raises(InvalidRequestError, match=re.escape(reason)):
        check_request(request(10, 20, sampling), INFO)
    most = {"stop_token_ids": [1] * 500, "seed": -(2**63), "bad_words": None, "allowed_token_ids": 7}
    assert check_request(request(10, 20, most), INFO)


READER = ModelInfo("m", "LlamaForCausalLM", 1000, "f", max_model_len=500, max_position=800, engine="mock")


@pytest.mark.parametrize("info", [READER, replace(READER, max_model_len=900, max_position=500)])
def test_prompt_and_look_ahead_must_fit(info):
    check_speculator_length(492, 8, info)
    check_speculator_length(500, 0, info)
    with pytest.raises(InvalidRequestError, match=r"has 493 tokens and look_ahead is 8, .* at most 500; "):
        check_speculator_length(493, 8, info)
