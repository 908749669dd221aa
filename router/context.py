"""What the router knows of one HTTP request while it runs.

The middleware makes a `RequestContext` and puts it into a context variable; the engine client, called deep inside
vLLM's HTTP app, reads the options from it and leaves there what it did, so that the middleware can say so in headers.
"""

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from actors.observability.tracing import NO_SPAN, Span
from kv_transfer.errors import EngineUnavailableError, InvalidRequestError, ModelError, SkimError
from kv_transfer.messages import DecodeOptions
from router.options import InvalidOptionError, PrefillOptions
from router.server_timing import TOTAL, write_server_timing


@dataclass(slots=True)
class Outcome:
    """How one prompt of a request ran. Times are milliseconds by part; keep_rate is what was really kept.

    mode: dense or speculative, empty until that is decided. answer_tokens: counted where the request is traced.
    """

    mode: str
    reason: str
    prompt_tokens: int
    kept_tokens: int
    options: PrefillOptions
    coverage: float = 1.0
    timings: dict[str, float] = field(default_factory=dict)
    answer_tokens: int = 0

    @property
    def keep_rate(self) -> float:
        return self.kept_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as a client sees it, in the OpenAI shape."""

    status: int
    type: str
    message: str
    param: str | None = None

    @classmethod
    def of(cls, error: Exception) -> "HttpError":
        """The client's view of any error; whatever Skim did not raise on purpose shows nothing of its inside."""
        if isinstance(error, InvalidRequestError | ModelError):
            param = _encodable(error.param) if isinstance(error, InvalidOptionError) else None
            return cls(400, "BadRequestError", _encodable(str(error)), param)
        if isinstance(error, EngineUnavailableError):
            return cls(503, "ServiceUnavailableError", _encodable(str(error)))
        if isinstance(error, SkimError):
            return cls(500, "InternalServerError", _encodable(str(error)))
        return cls(500, "InternalServerError", "an internal error stopped this request; the server's log has the cause")

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}


def _encodable(text: str) -> str:
    """JSON can spell half of a surrogate pair, which UTF-8 cannot; an error may quote it."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(slots=True)
class RequestContext:
    """options, decode: resolved for this request. conversations: what the chat template rendered, by the rendered text.

    outcomes: one for each prompt, in the client's order. answering: the first output of a prompt is there. error: what
    the client shall see in place of an answer. span: the request's, of which its prompts' are children.
    """

    options: PrefillOptions
    decode: DecodeOptions
    arrived: float = field(default_factory=time.perf_counter)
    echo: bool = False
    beam_search: bool = False
    conversations: dict[str | None, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    answering: bool = False
    error: HttpError | None = None
    span: Span = NO_SPAN

    def begin(self, prompt_tokens: int) -> Outcome:
        """The account of one more prompt. A beam search runs its prompt many times: the first run stands for it."""
        outcome = Outcome("", "", prompt_tokens, prompt_tokens, self.options)
        outcome.timings["tokenize"] = 1e3 * (time.perf_counter() - self.arrived)
        if not (self.beam_search and self.outcomes):
            self.outcomes.append(outcome)
        return outcome

    @property
    def headers_are_true(self) -> bool:
        """A first token is there, and how each prompt runs is decided."""
        return self.answering and all(outcome.mode for outcome in self.outcomes)

    def headers(self) -> list[tuple[str, str]]:
        """The effective values of every prompt, comma-separated where a request has several."""
        if not self.outcomes:
            return []
        values = {
            "x-skim-mode": [o.mode for o in self.outcomes],
            "x-skim-reason": [o.reason for o in self.outcomes],
            "x-skim-prompt-tokens": [str(o.prompt_tokens) for o in self.outcomes],
            "x-skim-kept-tokens": [str(o.kept_tokens) for o in self.outcomes],
            "x-skim-keep-rate": [f"{o.keep_rate:.4f}" for o in self.outcomes],
            "x-skim-coverage": [f"{o.coverage:.4f}" for o in self.outcomes],
            "x-skim-look-ahead": [str(o.options.look_ahead if o.mode == "speculative" else 0) for o in self.outcomes],
        }
        headers = [(name, ", ".join(parts)) for name, parts in values.items()]
        return [*headers, ("server-timing", self._server_timing())]

    def _server_timing(self) -> str:
        """Prompts of one request run side by side: the slowest one counts, part by part. The headers leave now."""
        parts: dict[str, float] = {}
        for outcome in self.outcomes:
            for name, ms in outcome.timings.items():
                parts[name] = max(parts.get(name, 0.0), ms)
        parts[TOTAL] = 1e3 * (time.perf_counter() - self.arrived)
        return write_server_timing(parts)


CURRENT: ContextVar[RequestContext | None] = ContextVar("skim_request", default=None)
