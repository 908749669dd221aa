"""Decides whether a prompt runs dense or speculative. Pure: it uses only what is known before an engine is called."""

from dataclasses import dataclass

from router.options.request import PrefillOptions


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """The properties of a request, besides its options, that the decision depends on.

    prompt_tokens: length M of the rendered prompt. compressible_tokens: tokens outside all protected spans; None if
    unknown. rated: a region of the prompt has its own keep rate. unmapped: as in PromptSpans. no_task: the text is
    known, and no task is found in it. untrusted: a pool has failed its start probe.
    """

    prompt_tokens: int
    prompt_logprobs: bool = False
    echo: bool = False
    beam_search: bool = False
    compressible_tokens: int | None = None
    rated: bool = False
    unmapped: bool = False
    no_task: bool = False
    untrusted: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """reason: one word for logs and headers, why the prompt runs dense; `requested` if it is speculative. Where time
    decides (`router.decision.cost_model`), it is a word for that."""

    speculative: bool
    reason: str


CACHED = Decision(False, "cached")


def decide(traits: RequestTraits, options: PrefillOptions) -> Decision:
    """The first rule that applies makes the prompt dense and gives the reason. No rule: speculative."""
    rules = (
        (not options.enabled, "disabled"),
        (options.keeps_all and not traits.rated, "keep-all"),
        (traits.prompt_tokens < options.min_prompt_tokens, "short-prompt"),
        (traits.untrusted, "start-probe"),
        (traits.prompt_logprobs, "prompt-logprobs"),
        (traits.echo, "echo"),
        (traits.beam_search, "beam-search"),
        (traits.unmapped, "unmapped-chat"),
        (traits.compressible_tokens == 0, "all-protected"),
        # The look-ahead needs no task. All other scores do.
        (traits.no_task and not options.for_prompt(windows=False).tokens_ahead, "no-task"),
    )
    for applies, reason in rules:
        if applies:
            return Decision(False, reason)
    return Decision(True, "requested")
