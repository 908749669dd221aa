"""Decides whether a prompt runs dense or speculative. Pure: it uses only what is known before an engine is called."""

from dataclasses import dataclass

from kv_transfer.layout import NO_LAYOUT
from router.options.request import PrefillOptions
from router.prompt.protected_spans import PromptSpans


@dataclass(frozen=True, slots=True)
class Decision:
    """reason: one word for logs and headers, why the prompt runs dense; `requested` if it is speculative. Where time
    decides (`router.decision.cost_model`), it is a word for that."""

    speculative: bool
    reason: str


CACHED = Decision(False, "cached")


def decide(
    options: PrefillOptions,
    size: int,
    spans: PromptSpans | None = None,
    *,
    has_text: bool = False,
    untrusted: bool = False,
    prompt_logprobs: bool = False,
    echo: bool = False,
    beam_search: bool = False,
) -> Decision:
    """The first rule that applies makes the prompt dense and gives the reason. No rule: speculative.

    size: tokens of the prompt. spans: None if they are not known. has_text: the text is known, so that a task would be
    found. untrusted: a pool has failed its start probe.
    """
    layout = spans.layout if spans else NO_LAYOUT
    rules = (
        (not options.enabled, "disabled"),
        (options.keeps_all and not layout.rates.size, "keep-all"),
        (size < options.min_prompt_tokens, "short-prompt"),
        (untrusted, "start-probe"),
        (prompt_logprobs, "prompt-logprobs"),
        (echo, "echo"),
        (beam_search, "beam-search"),
        (spans is not None and spans.unmapped, "unmapped-chat"),
        (spans is not None and spans.protected_tokens == size, "all-protected"),
        # The look-ahead needs no task. All other scores do.
        (has_text and not len(layout.questions) and not options.for_prompt(windows=False).tokens_ahead, "no-task"),
    )
    for applies, reason in rules:
        if applies:
            return Decision(False, reason)
    return Decision(True, "requested")
