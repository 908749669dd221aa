"""A prompt that the dispatcher runs, and what it knows of it on its way."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kv_transfer.options import DecodeOptions
from router.decision.forecast import Forecast
from router.decision.guard import Advice
from router.dispatch.context import RequestContext
from router.dispatch.outcome import Outcome
from router.prompt.contents import ChatContents
from router.prompt.protected_spans import Offsets, PromptSpans


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A rendered prompt with its sampling parameters.

    sampling: as in GenerateRequest. chat, text, offsets: the contents of a chat, the text that its template rendered,
    and each token's character range in that text; chat is None for raw prompts.
    """

    token_ids: list[int]
    sampling: Mapping[str, Any]
    max_tokens: int
    prompt_logprobs: bool = False
    multimodal: bool = False
    chat: ChatContents | None = None
    text: str | None = None
    offsets: Offsets | None = None
    cache_salt: str | None = None
    priority: int = 0
    engine_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One prompt on its way. affinity: as in SelectRequest. advice: the guard's; its options count for this prompt, and
    so does `decode`.

    started: when its mode is chosen, in seconds of `time.perf_counter`. request_id: the client may have chosen it, and
    knows it. wire_id: the pools' id of the prompt and of its drafting session, which no client can know or choose.
    """

    request_id: str
    prompt: Prompt
    context: RequestContext
    outcome: Outcome
    spans: PromptSpans
    affinity: str
    forecast: Forecast
    advice: Advice
    decode: DecodeOptions
    started: float = field(default_factory=time.perf_counter)
    wire_id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wire_id", f"{self.request_id}~{secrets.token_urlsafe(16)}")
