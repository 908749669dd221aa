"""Dense or speculative, and which lengths are refused."""

from dataclasses import replace

import pytest

from kv_transfer.errors import InvalidRequestError
from kv_transfer.messages import ModelInfo
from router.decision import Decision, RequestTraits, check_lengths, check_speculator_length, decide
from router.options import PrefillOptions

OPTIONS = PrefillOptions(min_prompt_tokens=100)
TRAITS = RequestTraits(prompt_tokens=100, max_tokens=10, compressible_tokens=50)
INFO = ModelInfo("m", "LlamaForCausalLM", 1000, "f", max_model_len=500, max_position=800, engine="mock")


def test_a_plain_request_is_speculative():
    assert decide(TRAITS, OPTIONS) == Decision(True, "requested")
    assert decide(replace(TRAITS, compressible_tokens=None), OPTIONS).speculative


@pytest.mark.parametrize(
    ("traits", "options", "reason"),
    [
        ({}, {"enabled": False}, "disabled"),
        ({}, {"keep_rate": 1.0}, "keep-all"),
        ({}, {"coverage": 1.0}, "keep-all"),
        ({"prompt_tokens": 99}, {}, "short-prompt"),
        ({"multimodal": True}, {}, "multimodal"),
        ({"prompt_logprobs": True}, {}, "prompt-logprobs"),
        ({"echo": True}, {}, "echo"),
        ({"beam_search": True}, {}, "beam-search"),
        ({"compressible_tokens": 0}, {}, "all-protected"),
    ],
)
def test_each_reason_for_a_dense_run(traits, options, reason):
    decision = decide(replace(TRAITS, **traits), OPTIONS.model_copy(update=options))
    assert decision == Decision(False, reason)


def test_the_first_reason_is_told():
    everything = replace(TRAITS, prompt_tokens=1, multimodal=True, echo=True)
    assert decide(everything, OPTIONS.model_copy(update={"enabled": False})).reason == "disabled"
    assert decide(everything, OPTIONS).reason == "short-prompt"


@pytest.mark.parametrize(
    "options",
    [{"keep_rate": 0.999}, {"coverage": 0.999}, {"keep_rate": 1.0, "coverage": 0.5}, {"min_prompt_tokens": 1}],
)
def test_less_than_all_is_speculative(options):
    """With a coverage, the keep rate says nothing."""
    assert decide(TRAITS, OPTIONS.model_copy(update=options)).speculative


@pytest.mark.parametrize(
    ("info", "limit", "name"),
    [
        (INFO, 500, "max_model_len"),
        (replace(INFO, max_model_len=800), 800, "max_position_embeddings"),
        (replace(INFO, max_model_len=900), 800, "max_position_embeddings"),
    ],
)
def test_prompt_and_answer_must_fit_the_target(info, limit, name):
    check_lengths(RequestTraits(limit - 16, 16), info)
    for prompt, answer in ((limit - 15, 16), (limit - 16, 17), (limit + 1, 0), (1, limit)):
        with pytest.raises(InvalidRequestError) as caught:
            check_lengths(RequestTraits(prompt, answer), info)
        message = str(caught.value)
        assert f"the prompt has {prompt} tokens and max_tokens is {answer}, together {prompt + answer}" in message
        assert f"{name} is {limit}" in message


@pytest.mark.parametrize("info", [INFO, replace(INFO, max_model_len=900, max_position=500)])
def test_prompt_and_look_ahead_must_fit_the_speculator(info):
    options = PrefillOptions(look_ahead=8)
    check_speculator_length(492, options, info)
    check_speculator_length(500, PrefillOptions(look_ahead=0), info)
    with pytest.raises(InvalidRequestError, match=r"has 493 tokens and look_ahead is 8, .* at most 500; "):
        check_speculator_length(493, options, info)
