"""The messages between the replicas of a speculator: windows of one prompt that another replica reads.

They are frozen data classes, as in `kv_transfer.messages`.
"""

from dataclasses import dataclass

from kv_transfer.messages import Float32Array, Frame, Int32Array
from kv_transfer.options import SelectionOptions

QUESTION_SHARE = 4
"""A question takes at most this fraction (1/4) of a window. Of a longer one, its beginning and its end are read."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowsRequest:
    """Read these windows of a prompt.

    model: `ModelInfo.path` of the speculator that asks; the scores of another model cannot be compared.
    token_ids: int32 [T], the tokens of all windows, one window after another. ends: int32 [W], where each window ends
    in token_ids. question: int32 [Q], the tokens of the question that is read after each. frame: what stands around a
    window. cache_salt, timeout_ms: as in SelectRequest.
    """

    request_id: str
    model: str
    token_ids: Int32Array
    ends: Int32Array
    question: Int32Array
    frame: Frame
    options: SelectionOptions
    cache_salt: str | None = None
    timeout_ms: float | None = None

    def __post_init__(self) -> None:
        edges = [0, *self.ends.tolist()]
        if self.token_ids.ndim != 1 or edges[-1] != self.token_ids.size or sorted(set(edges)) != edges:
            raise ValueError(f"the windows must divide the {self.token_ids.size} tokens, not end at {edges[1:]}")


@dataclass(frozen=True, slots=True, eq=False)
class WindowScores:
    """The scores of the windows. importance: float32 [T], as in Scores, token by token of the request.

    queue_ms: the shortest wait of a window in the engine's queue. cached_tokens: as in Scores, of all windows.
    """

    importance: Float32Array
    queue_ms: float = 0.0
    cached_tokens: int = 0
