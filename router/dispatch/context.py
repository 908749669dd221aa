"""The state of one HTTP request in the router.

The middleware creates a `RequestContext` and sets it in a context variable. The engine client runs deep inside vLLM's
HTTP app: it reads the options from the context and records the outcome there. The middleware turns the outcome into
response headers.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from actors.observability.tracing import NO_SPAN, Span
from kv_transfer.options import DecodeOptions
from router.admission.api_keys import FIRST_PRIORITY
from router.admission.rate_limits import KeyUse
from router.admission.ticket import Asked
from router.dispatch.outcome import Outcome
from router.options.errors import HttpError
from router.options.headers import TOTAL, write_server_timing
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents
from router.prompt.keep_fields import PartKeeps
from skim_common.deadline import NO_DEADLINE, Deadline


def nothing() -> None:
    """The request has entered no intake."""


@dataclass(slots=True)
class RequestContext:
    """options, decode: resolved for this request. chats: the contents of each chat, by its rendered text.

    outcomes: one per prompt, in the client's order. answering: the first output of a prompt has arrived. error: sent to
    the client instead of an answer. keeps: the client's wishes for content parts, whose texts are marked in the body.
    span: the request's trace span, the parent of the spans of its prompts. deadline: when the answer must be complete.
    key: the name of the request's API key, never the key; empty if the endpoint asks for none. use: what that key uses.
    share: its weight. min_priority: the lowest `priority` that it may send.
    isolated: it shares no cached prefix with other keys. sent_salt: the `cache_salt` of a chat, as the client sent it.
    render_only: the client gets the rendered prompt and no answer.
    request_id: the engines' id of the first prompt. admission: set while all prompts are admitted.
    later_requests: as in `router.options.headers`.
    decode_wished: the request has options of its own for drafts. asked: what its prompts share at the admission.
    leave_intake: called when a prompt is decided; the next request is then taken in.
    """

    options: PrefillOptions
    decode: DecodeOptions
    key: str = ""
    use: KeyUse | None = None
    share: float = 1.0
    min_priority: int = FIRST_PRIORITY
    isolated: bool = False
    arrived: float = field(default_factory=time.perf_counter)
    echo: bool = False
    beam_search: bool = False
    keeps: PartKeeps | None = None
    sent_salt: str | None = None
    render_only: bool = False
    chats: dict[str | None, ChatContents] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    answering: bool = False
    error: HttpError | None = None
    span: Span = NO_SPAN
    deadline: Deadline = NO_DEADLINE
    request_id: str = ""
    admission: asyncio.Event = field(default_factory=asyncio.Event)
    decode_wished: bool = False
    later_requests: int | None = None
    asked: Asked = field(default_factory=Asked)
    leave_intake: Callable[[], None] = nothing

    def begin(self, prompt_tokens: int) -> Outcome:
        """The outcome of one more prompt. A beam search runs its prompt many times; only the first run is reported.

        Raises LimitReachedError if the request's key has no tokens left.
        """
        outcome = Outcome("", "", prompt_tokens, prompt_tokens, self.options)
        outcome.timings["tokenize"] = 1e3 * (time.perf_counter() - self.arrived)
        if not (self.beam_search and self.outcomes):
            if self.use is not None:
                self.use.spend(prompt_tokens, first=not self.outcomes)
                outcome.spent_tokens = prompt_tokens
            self.outcomes.append(outcome)
            self.admission.clear()
        return outcome

    def give_back(self, outcome: Outcome) -> None:
        """The prompt was refused: its tokens do not count for the request's key."""
        if self.use is not None:
            self.use.give_back(outcome.spent_tokens)
            outcome.spent_tokens = 0

    def salt(self, sent: str | None) -> str | None:
        """The cache salt for the engines. sent: the client's own. Under API keys no client can send another key's salt:
        the part before the colon is an isolated key's name, or empty."""
        if self.isolated:
            return f"{self.key}:{sent or ''}"
        return f":{sent}" if self.key and sent else sent

    def admit(self, outcome: Outcome) -> None:
        """Note that a pool works on the prompt of `outcome`, and that the target takes requests."""
        outcome.admitted = True
        if all(other.admitted for other in self.outcomes):
            self.admission.set()

    @property
    def headers_are_true(self) -> bool:
        """Whether a first token has arrived and the mode of every prompt is decided."""
        return self.answering and all(outcome.mode for outcome in self.outcomes)

    def headers(self) -> list[tuple[str, str]]:
        """The effective values of all prompts, separated by commas: those that are known by now."""
        if not self.outcomes:
            return []
        lengths = ("x-skim-prompt-tokens", ", ".join(str(o.prompt_tokens) for o in self.outcomes))
        if not all(outcome.mode for outcome in self.outcomes):
            return [lengths]
        values = {
            "x-skim-mode": [o.mode for o in self.outcomes],
            "x-skim-reason": [o.explained for o in self.outcomes],
            "x-skim-kept-tokens": [str(o.kept_tokens) for o in self.outcomes],
            "x-skim-reused-tokens": [str(o.reused_tokens) for o in self.outcomes],
            "x-skim-keep-rate": [f"{o.keep_rate:.4f}" for o in self.outcomes],
            "x-skim-coverage": [f"{o.coverage:.4f}" for o in self.outcomes],
            "x-skim-look-ahead": [str(o.options.tokens_ahead if o.mode == "speculative" else 0) for o in self.outcomes],
        }
        headers = [lengths, *((name, ", ".join(parts)) for name, parts in values.items())]
        return [*headers, ("server-timing", self._server_timing())] if self.answering else headers

    def _server_timing(self) -> str:
        """The times until now. Prompts of one request run concurrently, so each part is that of the slowest prompt."""
        parts: dict[str, float] = {}
        for outcome in self.outcomes:
            for name, ms in outcome.timings.items():
                parts[name] = max(parts.get(name, 0.0), ms)
        parts[TOTAL] = 1e3 * (time.perf_counter() - self.arrived)
        return write_server_timing(parts)


CURRENT: ContextVar[RequestContext | None] = ContextVar("skim_request", default=None)
