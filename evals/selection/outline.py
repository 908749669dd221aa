"""The outline of a prompt: what any later question may need, found without a question. For measurements only.

It is made of the units (`router.prompt.units`) that hold a heading, the first line of a function or class, or the
first sentence of a paragraph, in this order of importance.
"""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np

from cluster.in_process.prompts import RenderedPrompt

SHARE = 0.1
"""The largest share of the prompt's tokens that an outline takes."""
KINDS = (
    re.compile(r"^\s*#+ |^\S[^\n]{0,60}:\s*$|^\s*(async def|def|class|fn|func|function|interface|struct)\b", re.M),
    re.compile(r"\A\s*\n\s*\n|\n\s*\n\s*\S"),
)
"""Headings and signatures; then a paragraph's beginning."""


def with_outline(prompt: RenderedPrompt, share: float = SHARE) -> RenderedPrompt:
    """`prompt` with its outline protected: the units that match an earlier kind first, in the order of the text.

    A prompt without units of text is returned as it is.
    """
    if not prompt.units.size or prompt.offsets is None:
        return prompt
    left, total = share * prompt.token_ids.size, prompt.token_ids.size
    spans = [*pairwise([*prompt.units.tolist(), total])]
    chosen: set[tuple[int, int]] = set()
    for kind in KINDS:
        for start, end in spans:
            first = max(0, int(prompt.offsets[start, 0]) - 2)
            text = prompt.text[first : int(prompt.offsets[end - 1, 1])]
            if (start, end) not in chosen and end - start <= left and kind.search(text):
                chosen.add((start, end))
                left -= end - start
    more = np.array(sorted(chosen), np.int32).reshape(-1, 2)
    return replace(prompt, protected=np.concatenate([prompt.protected, more]))
