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
from typing import Any

from actors.observability.tracing import NO_SPAN, Span
from kv_transfer.deadline import NO_DEADLINE, Deadline
from kv_transfer.errors import DeadlineError, EngineUnavailableError, InvalidRequestError, ModelError, SkimError
from kv_transfer.messages import Selection
from kv_transfer.options import DecodeOptions
from router.api_keys import FIRST_PRIORITY
from router.contents import ChatContents
from router.cost import Estimate
from router.key_limits import KeyUse
from router.options import InvalidOptionError, PrefillOptions
from router.part_keeps import PartKeeps
from router.places import Asked
from router.refusals import RefusedError
from router.timeout_headers import TOTAL, write_server_timing


@dataclass(slots=True)
class Outcome:
    """How one prompt of a request ran. timings: milliseconds by part.

    mode: dense or speculative; empty until decided. reason: in one word. answer_tokens: counted only if the request is
    traced. reused_tokens: as in Selection. estimate: the forecast that chose the mode; None if it was not chosen by
    time. guard: the kind of question for which the guard kept more; empty if it did not. lost_contents: as
    `PromptSpans.lost`. raised: as in Selection. admitted: a pool works on the prompt, and the target takes requests.
    shed: what the prompt did without because of the load (`router.shedding`). spent_tokens: taken from the API key.
    """

    mode: str
    reason: str
    prompt_tokens: int
    kept_tokens: int
    options: PrefillOptions
    coverage: float = 1.0
    timings: dict[str, float] = field(default_factory=dict)
    answer_tokens: int = 0
    reused_tokens: int = 0
    estimate: Estimate | None = None
    guard: str = ""
    lost_contents: int = 0
    raised: float = 0.0
    admitted: bool = False
    shed: str = ""
    spent_tokens: int = 0

    @property
    def explained(self) -> str:
        """The reason with parameters, as an HTTP structured field (RFC 9651): both estimates in milliseconds, the kind
        of question for the guard, the number of contents that are kept because their place is unknown, what the
        acceptance of earlier drafts added to the coverage, and what was left out because of the load."""
        parameters = f";guard={self.guard}" if self.guard else ""
        parameters += f";unmapped={self.lost_contents}" if self.lost_contents else ""
        parameters += f";raised={self.raised:g}" if self.raised else ""
        parameters += f";shed={self.shed}" if self.shed else ""
        if self.estimate is None:
            return f"{self.reason}{parameters}"
        times = f";dense={self.estimate.dense:.0f};speculative={self.estimate.speculative:.0f}"
        return f"{self.reason}{times}{parameters}"

    def selected(self, selection: Selection, elapsed_ms: float) -> None:
        """Record a selection that arrived after `elapsed_ms`."""
        self.mode, self.kept_tokens = "speculative", int(selection.kept.token_ids.size)
        self.coverage, self.reused_tokens = selection.coverage, selection.reused_tokens
        self.raised = selection.raised
        self.timings |= dict(selection.timings)
        self.timings["transfer"] = max(0.0, elapsed_ms - sum(selection.timings.values()))

    def distrusted(self, reason: str) -> None:
        """The prompt runs dense after its selection. The times stay: the client waited for it."""
        self.mode, self.reason, self.kept_tokens = "", reason, self.prompt_tokens
        self.coverage, self.reused_tokens, self.raised = 1.0, 0, 0.0

    @property
    def keep_rate(self) -> float:
        """The share of the prompt that was kept, which can exceed the requested rate."""
        return self.kept_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error in the OpenAI format. retry_after_s: when the client may try again; None: after a second for a 503,
    never for another status."""

    status: int
    type: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    @classmethod
    def of(cls, error: Exception) -> "HttpError":
        """The response for any error. An unexpected error shows the client no internals."""
        if isinstance(error, InvalidRequestError | ModelError):
            param = _encodable(error.param) if isinstance(error, InvalidOptionError) else None
            return cls(400, "BadRequestError", _encodable(str(error)), param)
        if isinstance(error, EngineUnavailableError):
            return cls(503, "ServiceUnavailableError", _encodable(str(error)), retry_after_s=error.retry_after_s)
        if isinstance(error, DeadlineError):
            return cls(504, "GatewayTimeoutError", str(error))
        if isinstance(error, RefusedError):
            return cls(error.status, error.type, _encodable(str(error)), retry_after_s=error.retry_after_s)
        if isinstance(error, SkimError):
            return cls(500, "InternalServerError", _encodable(str(error)))
        return cls(500, "InternalServerError", "an internal error stopped this request; the server's log has the cause")

    @property
    def headers(self) -> dict[str, str]:
        """The response headers that belong to the error."""
        retry = self.retry_after_s or (1 if self.status == 503 else None)
        return {} if retry is None else {"retry-after": str(retry)}

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}


def _encodable(text: str) -> str:
    """`text` with lone surrogates escaped. JSON can contain them, UTF-8 cannot, and an error may quote the request."""
    return text.encode("utf-8", "backslashreplace").decode()


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
    later_requests: as in `router.timeout_headers`.
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
