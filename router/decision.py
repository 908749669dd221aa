"""Dense or speculative? A pure decision from what is known of a request before any engine sees it."""

from dataclasses import dataclass

from router.options import PrefillOptions


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """What about a request, besides its options, decides how it can run.

    prompt_tokens: length M of the rendered prompt. compressible_tokens: those that no span protects; None for unknown.
    """

    prompt_tokens: int
    prompt_logprobs: bool = False
    echo: bool = False
    beam_search: bool = False
    multimodal: bool = False
    compressible_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` is one word for logs and headers: why dense, or `requested` when speculative."""

    speculative: bool
    reason: str


def decide(traits: RequestTraits, options: PrefillOptions) -> Decision:
    """DESIGN "never compressed": the first rule that asks for a dense run wins."""
    whole = options.keep_rate == 1 if options.coverage is None else options.coverage == 1
    rules = (
        (not options.enabled, "disabled"),
        (whole, "keep-all"),
        (traits.prompt_tokens < options.min_prompt_tokens, "short-prompt"),
        (traits.multimodal, "multimodal"),
        (traits.prompt_logprobs, "prompt-logprobs"),
        (traits.echo, "echo"),
        (traits.beam_search, "beam-search"),
        (traits.compressible_tokens == 0, "all-protected"),
    )
    for applies, reason in rules:
        if applies:
            return Decision(False, reason)
    return Decision(True, "requested")
