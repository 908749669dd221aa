"""Dense or speculative? A pure decision from what is known of a request before any engine sees it."""

from dataclasses import dataclass

from kv_transfer.errors import InvalidRequestError
from kv_transfer.messages import ModelInfo
from router.options import PrefillOptions


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """What about a request, besides its options, decides how it can run.

    prompt_tokens: length M of the rendered prompt. max_tokens: most tokens of the answer.
    """

    prompt_tokens: int
    max_tokens: int
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


def check_lengths(traits: RequestTraits, target: ModelInfo) -> None:
    """Refuse what the target cannot hold. Positions run to M + max_tokens whatever is dropped.

    Raises InvalidRequestError naming both numbers.
    """
    total = traits.prompt_tokens + traits.max_tokens
    for limit, name in ((target.max_position, "max_position_embeddings"), (target.max_model_len, "max_model_len")):
        if total > limit:
            raise InvalidRequestError(
                f"the prompt has {traits.prompt_tokens} tokens and max_tokens is {traits.max_tokens}, "
                f"together {total}, but the target's {name} is {limit}; shorten the prompt or ask for fewer tokens"
            )


def check_speculator_length(prompt_tokens: int, options: PrefillOptions, speculator: ModelInfo) -> None:
    """Refuse what the speculator cannot read. Raises InvalidRequestError naming both numbers."""
    limit = min(speculator.max_model_len, speculator.max_position)
    if prompt_tokens + options.look_ahead > limit:
        raise InvalidRequestError(
            f"the prompt has {prompt_tokens} tokens and look_ahead is {options.look_ahead}, but the speculator reads "
            f'at most {limit}; shorten the prompt or send "speculative_prefill": false'
        )
