"""The decision whether a prompt runs dense or speculative, and its reason."""

from functools import partial

import pytest

from router.decision import rules
from router.decision.rules import Decision
from router.options.request import PrefillOptions
from router.prompt.protected_spans import PromptSpans
from tests.unit.kv_transfer.layouts import layout_of

OPTIONS = PrefillOptions(min_prompt_tokens=100)
SIZE = 100


def spans(protected=50, **fields):
    return PromptSpans(layout_of([(0, protected)]), **fields)


decide = partial(rules.decide, size=SIZE, spans=spans())


def test_a_plain_request_is_speculative():
    assert decide(OPTIONS) == Decision(True, "requested")
    assert decide(OPTIONS, spans=None).speculative


@pytest.mark.parametrize(
    ("known", "options", "reason"),
    [
        ({}, {"enabled": False}, "disabled"),
        ({}, {"keep_rate": 1.0}, "keep-all"),
        ({}, {"keep_rate": 0.2, "coverage": 1.0}, "keep-all"),
        ({"size": 99}, {}, "short-prompt"),
        ({"untrusted": True}, {}, "start-probe"),
        ({"prompt_logprobs": True}, {}, "prompt-logprobs"),
        ({"echo": True}, {}, "echo"),
        ({"beam_search": True}, {}, "beam-search"),
        ({"spans": spans(SIZE)}, {}, "all-protected"),
        ({"has_text": True}, {"selector": "lexical"}, "no-task"),
        ({"has_text": True}, {"scoring": "heads"}, "no-task"),
        ({"has_text": True}, {"look_ahead": 0}, "no-task"),
    ],
)
def test_each_reason_for_a_dense_run(known, options, reason):
    decision = decide(OPTIONS.model_copy(update=options), **known)
    assert decision == Decision(False, reason)


def test_a_prompt_without_a_task_is_scored_by_the_look_ahead():
    assert decide(OPTIONS, has_text=True).speculative


def test_the_first_reason_is_told():
    everything = {"size": 1, "prompt_logprobs": True, "echo": True}
    assert decide(OPTIONS.model_copy(update={"enabled": False}), **everything).reason == "disabled"
    assert decide(OPTIONS, **everything).reason == "short-prompt"


@pytest.mark.parametrize(
    "options",
    [{"keep_rate": 0.999}, {"coverage": 0.999}, {"keep_rate": 1.0, "coverage": 0.5}, {"min_prompt_tokens": 1}],
)
def test_less_than_all_is_speculative(options):
    """With a coverage, the keep rate is not used."""
    assert decide(OPTIONS.model_copy(update=options)).speculative
