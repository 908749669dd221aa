"""Sampling parameters that would hold up or end an engine are refused; those of real clients pass."""

import json
import re

import pytest

from router.dispatch.sampling_limits import (
    MAX_GROUPS,
    MAX_LEVELS,
    MAX_LOGPROBS,
    MAX_READ_TOKENS,
    MAX_SCHEMA_COUNT,
    check_reply_size,
    check_sampling,
    first_logprobs,
)
from skim_common.errors import InvalidRequestError


def check(**structured_outputs):
    check_sampling({"structured_outputs": structured_outputs})


def nested(levels, inner):
    for _ in range(levels):
        inner = {"properties": {"x": inner}}
    return inner


def referring(links, levels):
    """Definitions of which each refers to the next."""
    definitions = {f"a{i}": nested(levels, {"$ref": f"#/$defs/a{i + 1}"}) for i in range(links)}
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{links}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("structured_outputs", "why"),
    [
        ({"json": json.dumps(nested(MAX_LEVELS, {}))}, "json has more than 200 levels"),
        ({"json": "[" * 5000}, "json has more than 200 levels"),
        ({"structural_tag": '{"format":' * 5000}, "structural_tag has more than 200 levels"),
        ({"json": referring(4000, 1)}, r"json has too many references \(\$ref\)"),
        ({"json": referring(150, 40)}, "json has too many references"),
        ({"json": json.dumps(referring(4000, 1)).replace("$", "\\u0024")}, "json has too many references"),
        ({"json": {"pattern": "(" * 100_000 + ")" * 100_000}}, "json has more than 1000 parentheses"),
        ({"regex": "(" * (MAX_GROUPS + 1)}, "regex has more than 1000 parentheses"),
        ({"grammar": 'root ::= "\ud800" ' + "(" * (MAX_GROUPS + 1)}, "grammar has more than 1000 parentheses"),
    ],
)
def test_what_would_end_an_engine_is_refused(structured_outputs, why):
    with pytest.raises(InvalidRequestError, match=why):
        check(**structured_outputs)


@pytest.mark.parametrize(
    "structured_outputs",
    [
        {},
        {"json": nested(45, {"type": "string"}), "regex": None, "json_object": None},
        {"json": json.dumps(referring(400, 3))},
        {"json": "{ no JSON"},
        {"json": '{"a": "\\ud800"}'},
        {"json": {"type": "object", "description": ":-( " * 900}},
        {"regex": "(a)" * 5000},
        {"grammar": "root ::= " + "{" * 300},
        {"choice": ["a", "b"]},
        {"json_object": True},
    ],
)
def test_others_pass(structured_outputs):
    check(**structured_outputs)


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
def test_the_log_probabilities_of_a_reply_are_counted_before_it_is_made(prompt, sampling, count):
    assert first_logprobs(prompt, sampling, 50_000) == count


@pytest.mark.parametrize("most", [MAX_LOGPROBS // 21, MAX_LOGPROBS // 2])
def test_a_prompt_with_too_many_log_probabilities_is_refused_before_it_runs(most):
    sampling = {"prompt_logprobs": MAX_LOGPROBS // most - 1}
    check_reply_size(first_logprobs(most, sampling, 50_000))
    with pytest.raises(InvalidRequestError, match=f"log probabilities or more, but the limit is {MAX_LOGPROBS}"):
        check_reply_size(first_logprobs(most + 1, sampling, 50_000))


def test_a_long_prompt_has_fewer_answers():
    first_logprobs(MAX_READ_TOKENS // 64, {"n": 64}, 50_000)
    with pytest.raises(InvalidRequestError, match=f"n is 65 .* may have {MAX_READ_TOKENS}"):
        first_logprobs(MAX_READ_TOKENS // 64, {"n": 65}, 50_000)


def schema(name: str, count: float, depth: int = 0) -> dict:
    inner: dict = {"type": "array", name: count}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, inner]}}}
    return inner


@pytest.mark.parametrize("name", ["minItems", "maxItems", "minProperties", "maxProperties"])
@pytest.mark.parametrize("written", [dict, json.dumps])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_schema_that_counts_to_millions_is_refused(name, written, depth):
    """A body of 60 bytes would take gigabytes of a target's memory."""
    for field in ("json", "structural_tag") if written is json.dumps else ("json",):
        constraint = {field: written(schema(name, MAX_SCHEMA_COUNT + 1, depth))}
        with pytest.raises(InvalidRequestError, match=f"{name} of a schema is {MAX_SCHEMA_COUNT + 1}"):
            check_sampling({"structured_outputs": constraint})
        check_sampling({"structured_outputs": {field: written(schema(name, MAX_SCHEMA_COUNT, depth))}})


@pytest.mark.parametrize(
    "constraint", [None, {"json": "{"}, {"json": "[" * 100}, {"regex": "a"}, {"json": {"minItems": "x"}}]
)
def test_what_is_no_schema_is_left_to_vllm(constraint):
    check_sampling({"structured_outputs": constraint})


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
def test_what_a_sampler_has_no_room_for_is_refused(sampling, reason):
    with pytest.raises(InvalidRequestError, match=re.escape(reason)):
        check_sampling(sampling)
    most = {"stop_token_ids": [1] * 500, "seed": -(2**63), "bad_words": None, "allowed_token_ids": 7}
    check_sampling(most)
