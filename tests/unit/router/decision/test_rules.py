"""The decision whether a prompt runs dense or speculative, and its reason."""

from dataclasses import replace

import pytest

from router.decision.rules import Decision, RequestTraits, decide
from router.options.request import PrefillOptions

OPTIONS = PrefillOptions(min_prompt_tokens=100)
TRAITS = RequestTraits(prompt_tokens=100, compressible_tokens=50)


def test_a_plain_request_is_speculative():
    assert decide(TRAITS, OPTIONS) == Decision(True, "requested")
    assert decide(replace(TRAITS, compressible_tokens=None), OPTIONS).speculative


@pytest.mark.parametrize(
    ("traits", "options", "reason"),
    [
        ({}, {"enabled": False}, "disabled"),
        ({}, {"keep_rate": 1.0}, "keep-all"),
        ({}, {"keep_rate": 0.2, "coverage": 1.0}, "keep-all"),
        ({"prompt_tokens": 99}, {}, "short-prompt"),
        ({"untrusted": True}, {}, "start-probe"),
        ({"prompt_logprobs": True}, {}, "prompt-logprobs"),
        ({"echo": True}, {}, "echo"),
        ({"beam_search": True}, {}, "beam-search"),
        ({"compressible_tokens": 0}, {}, "all-protected"),
        ({"no_task": True}, {"selector": "lexical"}, "no-task"),
        ({"no_task": True}, {"scoring": "heads"}, "no-task"),
        ({"no_task": True}, {"look_ahead": 0}, "no-task"),
    ],
)
def test_each_reason_for_a_dense_run(traits, options, reason):
    decision = decide(replace(TRAITS, **traits), OPTIONS.model_copy(update=options))
    assert decision == Decision(False, reason)


def test_a_prompt_without_a_task_is_scored_by_the_look_ahead():
    assert decide(replace(TRAITS, no_task=True), OPTIONS).speculative


def test_the_first_reason_is_told():
    everything = replace(TRAITS, prompt_tokens=1, prompt_logprobs=True, echo=True)
    assert decide(everything, OPTIONS.model_copy(update={"enabled": False})).reason == "disabled"
    assert decide(everything, OPTIONS).reason == "short-prompt"


@pytest.mark.parametrize(
    "options",
    [{"keep_rate": 0.999}, {"coverage": 0.999}, {"keep_rate": 1.0, "coverage": 0.5}, {"min_prompt_tokens": 1}],
)
def test_less_than_all_is_speculative(options):
    """With a coverage, the keep rate is not used."""
    assert decide(TRAITS, OPTIONS.model_copy(update=options)).speculative
