"""What a speculator computes of a prompt that it reads in windows (`kv_transfer.windows.WindowPlan`). Pure.

    tokens = prompt - outside - cached + windows * (question + frame)
    read   = tokens + again

`again` is the second read (`WindowPlan.tokens_again`), with its question and frame. It is never cached.

Each window is a prompt of its own, so attention does not grow with the prompt: the time is linear in `read`.
Protected tokens stand in no window, but for those between two texts that share one.
"""

from dataclasses import dataclass

from kv_transfer.windows import AGAIN_SHARE, MOST_AGAIN, WindowPlan
from router.options.request import PrefillOptions
from skim_common.models.costs import Read

BLOCK = 32
"""Windows share the whole blocks of their head in the prefix cache: tokens of a block, on CPU. It is 16 on a GPU."""
MEAN_SHARE = 0.75
"""The mean size of a window of a long text as a share of the largest: it has half or more."""


@dataclass(frozen=True, slots=True)
class WindowReads:
    """around: tokens of question and frame, which each window has. most: `window_tokens`. protected: tokens of the
    prompt that stand in no window. more: by so many windows its shape differs from one long text. head: tokens of the
    frame's beginning. again: the best of several windows is read once more.
    """

    around: int
    most: int
    protected: int = 0
    more: float = 0.0
    head: int = 0
    again: bool = False

    @classmethod
    def of(cls, options: PrefillOptions, plan: WindowPlan | None, size: int, head: int = 0) -> "WindowReads | None":
        """None for a prompt that is read as a whole. plan: of the prompt, which has `size` tokens. head: as above."""
        if options.read != "windows" or options.selector == "lexical" or plan is None:
            return None
        more = plan.windows - plan.tokens / (MEAN_SHARE * plan.size)
        return cls(plan.around, plan.size, size - plan.tokens, more, head, options.read_again == "on")

    def count(self, size: int) -> float:
        """The windows of the prompt, at least 1, if it had `size` tokens: what it has more is a long text."""
        return max(1.0, (size - self.protected) / (MEAN_SHARE * self.most) + self.more)

    def known(self, size: int, known: int) -> float:
        """The tokens that windows find in the cache if the first `known` tokens of the prompt were read before. Of the
        windows of one prompt, the first one reads the head, and the others find it."""
        return max(0, known - self.protected) + (self.count(size) - 1) * (self.head - self.head % BLOCK)

    def tokens(self, size: int, cached: float) -> float:
        """The tokens that the windows compute of a prompt of `size` tokens. cached: tokens that windows had cached."""
        return max(1.0, size - self.protected - cached + self.count(size) * self.around)

    def read(self, size: int, cached: float) -> Read:
        """All that is computed. cached: as in `tokens`."""
        return Read.of(self.tokens(size, cached) + self.tokens_again(size))

    def tokens_again(self, size: int) -> float:
        """The tokens of the second read of a prompt of `size` tokens; 0 without one."""
        if not self.again or self.count(size) <= 1:
            return 0.0
        return self.around + min(MOST_AGAIN, AGAIN_SHARE * (size - self.protected))
