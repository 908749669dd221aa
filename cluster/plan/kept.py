"""How much of a prompt the target reads where no option says it (`keep_rate: auto`, with the guard). Pure."""

from bisect import bisect_right

from router.options.request import PrefillOptions

KEPT_BY_DEFAULT = {2048: 0.38, 4096: 0.37, 8192: 0.32, 16384: 0.30}
"""The measured share, by the tokens of a prompt: Qwen2.5-Coder 0.5B for 1.5B (docs/results.md, answer quality by prompt
length). Prompts of which the guard keeps more, or all, count."""


def kept_by_default(tokens: float) -> float:
    """The share of a prompt of so many tokens: of the nearest shorter measured length. Short prompts run dense."""
    if tokens < PrefillOptions().min_prompt_tokens:
        return 1.0
    lengths = list(KEPT_BY_DEFAULT)
    return KEPT_BY_DEFAULT[lengths[max(0, bisect_right(lengths, tokens) - 1)]]
