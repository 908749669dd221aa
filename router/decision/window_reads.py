"""What a speculator computes of a prompt that it reads in windows (`kv_transfer.windows.WindowPlan`). Pure.

    tokens = prompt - outside - cached + windows * (question + frame)
    read   = tokens / min(replicas, windows)

Each window is a prompt of its own, so attention does not grow with the prompt: the time is linear in `read`. The
replicas of the pool read at the same time. Protected tokens stand in no window, but for those between two texts that
share one.
"""

from dataclasses import dataclass

from kv_transfer.windows import WindowPlan
from router.options.request import PrefillOptions
from skim_common.models.costs import Read

MEAN_SHARE = 0.75
"""The mean size of a window of a long text as a share of the largest: it has half or more."""


@dataclass(frozen=True, slots=True)
class WindowReads:
    """around: tokens of question and frame, which each window has. most: `window_tokens`. protected: tokens of the
    prompt that stand in no window. more: by so many windows its shape differs from one long text.
    """

    around: int
    most: int
    protected: int = 0
    more: float = 0.0

    @classmethod
    def of(cls, options: PrefillOptions, plan: WindowPlan | None, size: int) -> "WindowReads | None":
        """None for a prompt that is read as a whole. plan: of the prompt, which has `size` tokens."""
        if options.read != "windows" or options.selector == "lexical" or plan is None:
            return None
        more = plan.windows - plan.tokens / (MEAN_SHARE * plan.size)
        return cls(plan.around, plan.size, size - plan.tokens, more)

    def count(self, size: int) -> float:
        """The windows of the prompt, at least 1, if it had `size` tokens: what it has more is a long text."""
        return max(1.0, (size - self.protected) / (MEAN_SHARE * self.most) + self.more)

    def tokens(self, size: int, cached: int) -> float:
        """The tokens that the pool computes of a prompt of `size` tokens. cached: tokens that windows had cached."""
        return max(1.0, size - self.protected - cached + self.count(size) * self.around)

    def read(self, size: int, cached: int, replicas: float) -> Read:
        """What each replica computes. cached: as in `tokens`. replicas: of the pool, per router."""
        return Read.of(self.tokens(size, cached) / min(replicas, self.count(size)))
