"""What a speculator computes of a prompt that it reads in windows (`speculator_service.reading`). Pure.

    tokens = prompt - protected - cached + windows * (question + frame)
    read   = tokens / min(replicas, windows)

Each window is a prompt of its own, so attention does not grow with the prompt: the time is linear in `read`. The
replicas of the pool read at the same time. The number of windows is that of an average text. Protected tokens stand in
no window.
"""

from dataclasses import dataclass

from kv_transfer.messages import Frame
from kv_transfer.windows import QUESTION_SHARE
from router.options.request import PrefillOptions
from skim_common.models.costs import Read

MEAN_SHARE = 0.75
"""The mean size of a window as a share of the largest: it has half or more (`speculator_service.reading.plan`)."""


@dataclass(frozen=True, slots=True)
class WindowReads:
    """around: tokens of question and frame, which each window has. most: `window_tokens`. protected: tokens of the
    prompt that are never dropped.
    """

    around: int
    most: int
    protected: int = 0

    @classmethod
    def of(
        cls, options: PrefillOptions, question: tuple[int, int] | None, frame: Frame | None, protected: int
    ) -> "WindowReads | None":
        """None for a prompt that is read as a whole."""
        if options.read != "windows" or options.selector == "lexical" or question is None or frame is None:
            return None
        asked = min(question[1] - question[0], options.window_tokens // QUESTION_SHARE)
        around = asked + frame.head.size + frame.joint.size + frame.tail.size
        return cls(around, options.window_tokens, protected)

    def count(self, size: int) -> float:
        """The windows of a prompt of `size` tokens, at least 1."""
        return max(1.0, (size - self.protected) / (MEAN_SHARE * self.most))

    def tokens(self, size: int, cached: int) -> float:
        """The tokens that the pool computes of a prompt of `size` tokens. cached: tokens that windows had cached."""
        return max(1.0, size - self.protected - cached + self.count(size) * self.around)

    def read(self, size: int, cached: int, replicas: float) -> Read:
        """What each replica computes. cached: as in `tokens`. replicas: of the pool, per router."""
        return Read.of(self.tokens(size, cached) / min(replicas, self.count(size)))
