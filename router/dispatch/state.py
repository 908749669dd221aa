"""What happens to a request: `CallState` for one HTTP call, `PromptState` for each of its prompts.

The middleware creates a `CallState` and sets it in a context variable. The engine client runs deep inside vLLM's HTTP
app: it finds the request there, and the dispatcher writes down what happens. The middleware turns that into response
headers.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np

from actors.observability.tracing import NO_SPAN, Span
from kv_transfer.drafts import UNDRAFTED
from kv_transfer.limits.target import check_reply_size
from kv_transfer.messages import Int32Array, Selection
from kv_transfer.options import DecodeOptions
from kv_transfer.sampling import is_seeded
from router.admission.ticket import PromptGroup
from router.decision.cost_model import Estimate
from router.decision.forecast import Forecast
from router.decision.guard import Advice
from router.dispatch.request import Prompt, Request
from router.options.errors import HttpError
from router.options.headers import TOTAL, write_server_timing
from router.options.policies import SYSTEM_ROLES
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents
from router.prompt.protected_spans import PromptSpans


@dataclass(slots=True, eq=False)
class PromptState:
    """One prompt on its way.

    request_id: the client may have chosen it, and knows it. wire_id: the pools' id of the prompt and of its drafting
    session, which no client can know or choose. options, decode: those that count for this prompt. spans, advice,
    forecast, affinity: what is known before the mode is chosen; affinity is as in SelectRequest. units, indents,
    links: as in SelectRequest; empty for a dense prompt. started: when the mode is chosen, in seconds of
    `time.perf_counter`.

    mode: dense or speculative; empty until decided. reason: in one word. estimate: the forecast that chose the mode;
    None if it was not chosen by time. guard: the kind of question for which the guard kept more; empty if it did not.
    shed: what the prompt did without because of the load (`router.admission.load_shedding`). coverage,
    reused_tokens: as in Selection. admitted: a pool works on the prompt, and the target takes requests. timings:
    milliseconds by part. answer_tokens: counted only if the call is traced. spent_tokens: taken from the API key.
    """

    call: "CallState"
    prompt: Prompt
    request_id: str
    options: PrefillOptions
    decode: DecodeOptions
    wire_id: str = field(init=False)
    spans: PromptSpans = field(init=False)
    advice: Advice = field(init=False)
    forecast: Forecast = field(init=False)
    affinity: str = ""
    units: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    indents: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    links: Int32Array = field(default_factory=lambda: np.empty((0, 2), np.int32))
    started: float = 0.0
    mode: str = ""
    reason: str = ""
    estimate: Estimate | None = None
    guard: str = ""
    shed: str = ""
    kept_tokens: int = field(init=False)
    coverage: float = 1.0
    reused_tokens: int = 0
    lost_contents: int = 0
    admitted: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    answer_tokens: int = 0
    spent_tokens: int = 0

    def __post_init__(self) -> None:
        self.wire_id = f"{self.request_id}~{secrets.token_urlsafe(16)}"
        self.kept_tokens = self.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.token_ids)

    @property
    def uses_drafts(self) -> bool:
        """Whether the answer can use drafts of a session. Its last token needs none."""
        most = self.prompt.max_tokens  # 0: any number
        return self.decode.method == "remote" and (not most or most > UNDRAFTED + 1)

    @property
    def reads_for_drafts(self) -> bool:
        """Whether the speculator reads the kept prompt for drafts. Over the whole prompt, the scores have read it."""
        return self.uses_drafts and (self.forecast.windows is not None or self.decode.draft_context == "kept")

    @property
    def keep_rate(self) -> float:
        """The share of the prompt that was kept, which can exceed the requested rate."""
        return self.kept_tokens / self.prompt_tokens

    @property
    def _is_system_prompt(self) -> bool:
        """Whether it runs dense because most of it is a system prompt, from which selection needs a choice."""
        if self.reason != "all-protected" or 2 * self.spans.opening <= self.prompt_tokens:
            return False
        return self.prompt.chat is not None and any(role in SYSTEM_ROLES for role in self.prompt.chat.roles)

    @property
    def explained(self) -> str:
        """The reason with parameters, as an HTTP structured field (RFC 9651): both estimates in milliseconds, the kind
        of question for the guard, the number of contents that are kept because their place is unknown, and
        what was left out because of the load. option: what would let a selection drop something."""
        parameters = f";guard={self.guard}" if self.guard else ""
        parameters += ";option=keep_by_role.system" if self._is_system_prompt else ""
        parameters += f";unmapped={self.lost_contents}" if self.lost_contents else ""
        parameters += f";shed={self.shed}" if self.shed else ""
        if self.estimate is None:
            return f"{self.reason}{parameters}"
        times = f";dense={self.estimate.dense:.0f};speculative={self.estimate.speculative:.0f}"
        return f"{self.reason}{times}{parameters}"

    def selected(self, selection: Selection, elapsed_ms: float) -> None:
        """Record a selection that arrived after `elapsed_ms`."""
        self.mode, self.kept_tokens = "speculative", int(selection.kept.token_ids.size)
        self.coverage, self.reused_tokens = selection.coverage, selection.reused_tokens
        self.timings |= dict(selection.timings)
        self.timings["transfer"] = max(0.0, elapsed_ms - sum(selection.timings.values()))

    def distrusted(self, reason: str) -> None:
        """The prompt runs dense after its selection. The times stay: the client waited for it."""
        self.mode, self.reason, self.kept_tokens = "", reason, self.prompt_tokens
        self.coverage, self.reused_tokens = 1.0, 0

    def admit(self) -> None:
        """Note that a pool works on this prompt, and that the target takes requests."""
        self.admitted = True
        self.call.note_admitted()

    def give_back(self) -> None:
        """The prompt was refused: its tokens do not count for the call's key."""
        if (caller := self.call.request.caller) is not None:
            caller.use.give_back(self.spent_tokens)
            self.spent_tokens = 0


def nothing() -> None:
    """The call holds no intake lock."""


@dataclass(slots=True, eq=False)
class CallState:
    """One HTTP call on its way. prompts: in the client's order. chats: the contents of each chat, by its rendered text.

    sent_salt: the `cache_salt` of a chat, as the client sent it. request_id: the engines' id of the first prompt.
    span: the call's trace span, the parent of the spans of its prompts. group: what its prompts share at the admission.
    admission: set while all prompts are admitted. logprobs: that the whole reply has by now, with those that are asked
    for the prompts. answering: the first output of a prompt has arrived. error: sent to
    the client instead of an answer. release_intake: called when a prompt is decided; the next call is then taken in.
    """

    request: Request
    span: Span = NO_SPAN
    release_intake: Callable[[], None] = nothing
    chats: dict[str | None, ChatContents] = field(default_factory=dict)
    sent_salt: str | None = None
    request_id: str = ""
    prompts: list[PromptState] = field(default_factory=list)
    group: PromptGroup = field(default_factory=PromptGroup)
    admission: asyncio.Event = field(default_factory=asyncio.Event)
    logprobs: int = 0
    answering: bool = False
    error: HttpError | None = None

    def begin(self, request_id: str, prompt: Prompt) -> PromptState:
        """The state of one more prompt. A beam search runs its prompt many times; only the first run is reported.

        A seeded prompt gets no drafts unless the client asks for some: which tokens are drafted in time, and accepted,
        decides which random numbers are used. Raises LimitReachedError if the call's key has no tokens left.
        """
        request = self.request
        seeded = is_seeded(prompt.sampling) and not request.decode_is_explicit
        decode = request.decode.model_copy(update={"method": "none"}) if seeded else request.decode
        state = PromptState(self, prompt, request_id, request.options, decode)
        state.timings["tokenize"] = 1e3 * (time.perf_counter() - request.arrived)
        if not (request.beam_search and self.prompts):
            if request.caller is not None:
                request.caller.use.spend(state.prompt_tokens, first=not self.prompts)
                state.spent_tokens = state.prompt_tokens
            self.prompts.append(state)
            self.admission.clear()
        return state

    def add_logprobs(self, count: int) -> None:
        """Count log probabilities of the reply. Raises InvalidRequestError at the limit.

        A beam search runs its prompt many times for one reply, so each of its runs counts alone.
        """
        self.logprobs = count + (0 if self.request.beam_search else self.logprobs)
        check_reply_size(self.logprobs)

    def note_admitted(self) -> None:
        """Set `admission` if all prompts are admitted."""
        if all(prompt.admitted for prompt in self.prompts):
            self.admission.set()

    @property
    def headers_are_true(self) -> bool:
        """Whether a first token has arrived and the mode of every prompt is decided."""
        return self.answering and all(prompt.mode for prompt in self.prompts)

    def headers(self) -> list[tuple[str, str]]:
        """The effective values of all prompts, separated by commas: those that are known by now."""
        if not self.prompts:
            return []
        lengths = ("x-skim-prompt-tokens", ", ".join(str(p.prompt_tokens) for p in self.prompts))
        if not all(prompt.mode for prompt in self.prompts):
            return [lengths]
        values = {
            "x-skim-mode": [p.mode for p in self.prompts],
            "x-skim-reason": [p.explained for p in self.prompts],
            "x-skim-kept-tokens": [str(p.kept_tokens) for p in self.prompts],
            "x-skim-reused-tokens": [str(p.reused_tokens) for p in self.prompts],
            "x-skim-keep-rate": [f"{p.keep_rate:.4f}" for p in self.prompts],
            "x-skim-coverage": [f"{p.coverage:.4f}" for p in self.prompts],
            "x-skim-look-ahead": [str(p.options.tokens_ahead if p.mode == "speculative" else 0) for p in self.prompts],
        }
        headers = [lengths, *((name, ", ".join(parts)) for name, parts in values.items())]
        return [*headers, ("server-timing", self._server_timing())] if self.answering else headers

    def _server_timing(self) -> str:
        """The times until now. Prompts of one call run concurrently, so each part is that of the slowest prompt."""
        parts: dict[str, float] = {}
        for prompt in self.prompts:
            for name, ms in prompt.timings.items():
                parts[name] = max(parts.get(name, 0.0), ms)
        parts[TOTAL] = 1e3 * (time.perf_counter() - self.request.arrived)
        return write_server_timing(parts)


CURRENT: ContextVar[CallState | None] = ContextVar("skim_call", default=None)
