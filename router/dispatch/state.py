"""What happens to a request: `CallState` for one HTTP call, `Outcome` for each of its prompts.

The middleware sets a `CallState` in a context variable, where the engine client finds it deep inside vLLM's HTTP app.
The dispatcher writes down what happens, and the middleware turns that into response headers.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span

from kv_transfer.messages import Selection
from kv_transfer.options import SelectionOptions
from router.admission.ticket import PromptGroup
from router.decision.choice import Decision, Estimate
from router.dispatch.request import Prepared, Prompt, Request
from router.dispatch.sampling_limits import check_reply_size
from router.options.errors import HttpError
from router.options.headers import TOTAL, write_server_timing
from router.prompt.contents import ChatContents
from router.prompt.rendered import MessageSpan


@dataclass(slots=True, eq=False)
class Outcome:
    """What happens to one prompt."""

    call: "CallState"
    prompt_tokens: int
    timings: dict[str, float] = field(default_factory=dict)  # milliseconds by part, until the first token
    spent_tokens: int = 0  # taken from the API key
    admitted: bool = False  # a pool works on the prompt, and the target takes requests
    mode: str = ""  # dense or speculative; empty until decided
    reason: str = ""  # one word
    notes: dict[str, str | int] = field(default_factory=dict)  # parameters of the reason, see `explained`
    estimate: Estimate | None = None  # None if the mode was not chosen by time
    selection: Selection | None = None  # None for a dense prompt
    tokens_ahead: int = 0  # N, the look-ahead of the selection
    messages: Callable[[], Sequence[MessageSpan]] = list  # the places of a chat's
    answer_tokens: int = 0  # counted only if the call is traced
    catches_up: bool = False  # the target reads all of a prompt that lost tokens, after its answer
    catch_up_reason: str = ""  # why or why not, in one word; empty for a prompt that lost none
    caught_up: int = 0  # tokens at the beginning that catch-ups of earlier turns have read
    shape: str = ""  # as `router.decision.conversations.shape_of`
    prepared: Prepared = field(init=False, repr=False)  # from the first stage on; later stages replace it

    @property
    def kept_tokens(self) -> int:
        return self.prompt_tokens if self.selection is None else int(self.selection.kept.token_ids.size)

    @property
    def dropped_tokens(self) -> int:
        return self.prompt_tokens - self.kept_tokens

    @property
    def keep_rate(self) -> float:
        """The share of the prompt that was kept, which can exceed the requested rate."""
        return self.kept_tokens / self.prompt_tokens

    @property
    def coverage(self) -> float:
        return 1.0 if self.selection is None else self.selection.coverage

    @property
    def reused_tokens(self) -> int:
        return 0 if self.selection is None else self.selection.reused_tokens

    @property
    def seconds(self) -> float:
        """The time since the call arrived; for a later step of a beam search, since it was prepared."""
        is_first = self in self.call.prompts
        return time.perf_counter() - (self.call.request.arrived if is_first else self.prepared.started)

    @property
    def explained(self) -> str:
        """The reason with parameters, as an HTTP structured field (RFC 9651): both estimates in milliseconds, and the
        notes.

        option: what would let a selection drop something. selector, placed: what `selector: auto` chose, by how much of
        the question the words place. unmapped: the number of contents that are kept because their
        place is unknown. shed: what was left out because of the load (`router.admission.ticket`).
        """
        estimate, notes = self.estimate, self.notes
        if estimate is not None:
            notes = {"dense": f"{estimate.dense:.0f}", "speculative": f"{estimate.speculative:.0f}", **notes}
        return self.reason + "".join(f";{name}={value}" for name, value in notes.items())

    @property
    def catch_up_state(self) -> str:
        """What becomes of the tokens that the target did not read, as an HTTP structured field (RFC 9651). Of a prompt
        that lost none: caught-up, if `tokens` of it were read after an earlier turn, or none."""
        state = "caught-up" if self.caught_up else "none"
        if self.catch_up_reason:
            state = f"{'planned' if self.catches_up else 'off'};reason={self.catch_up_reason}"
        return f"{state};tokens={self.caught_up}" if self.caught_up else state

    def decided(self, decision: Decision) -> None:
        """Note the decision, and why."""
        self.reason, prepared = decision.reason, self.prepared
        if decision.speculative and prepared.layout.units.size:  # by now only where `selector: auto` looked them up
            self.notes |= {"selector": prepared.options.selector, "placed": f"{prepared.layout.placed:.2f}"}
        if decision.reason == "all-protected" and prepared.is_system_prompt:
            self.notes["option"] = "keep_by_role.system"
        if prepared.spans.lost:
            self.notes["unmapped"] = prepared.spans.lost

    def selected(self, selection: Selection, options: SelectionOptions, elapsed_ms: float) -> None:
        """Record a selection by these options that arrived after `elapsed_ms`."""
        self.mode, self.selection, self.tokens_ahead = "speculative", selection, options.tokens_ahead
        self.timings |= dict(selection.timings)
        self.timings["transfer"] = max(0.0, elapsed_ms - sum(selection.timings.values()))

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
    """One HTTP call on its way."""

    request: Request
    span: Span = INVALID_SPAN  # the parent of the spans of its prompts
    release_intake: Callable[[], None] = nothing  # called when a prompt is decided; the next call is then taken in
    chats: dict[str | None, ChatContents] = field(default_factory=dict)  # by their rendered text
    edits: list[dict[str, Any]] = field(default_factory=list)  # of `context_management`, as Anthropic's `applied_edits`
    sent_salt: str | None = None  # the `cache_salt` of a chat, as the client sent it
    request_id: str = ""  # the engines' id of the first prompt
    prompts: list[Outcome] = field(default_factory=list)  # in the client's order
    group: PromptGroup = field(default_factory=PromptGroup)  # what its prompts share at the admission
    admission: asyncio.Event = field(default_factory=asyncio.Event)  # set while all prompts are admitted
    logprobs: int = 0  # of the whole reply by now, with those that are asked for the prompts
    answering: bool = False  # the first output of a prompt has arrived
    error: HttpError | None = None  # sent to the client instead of an answer

    def begin(self, prompt: Prompt) -> Outcome:
        """The outcome of one more prompt. A beam search runs its prompt many times; only the first run is reported.

        Raises LimitReachedError if the call's key has no tokens left. Prompts that get no answer are made one after the
        other, so each of them can still be refused.
        """
        request = self.request
        outcome = Outcome(self, prompt.rendered.size)
        outcome.timings["tokenize"] = 1e3 * (time.perf_counter() - request.arrived)
        if not (request.beam_search and self.prompts):
            if request.caller is not None:
                request.caller.use.spend(outcome.prompt_tokens, first=not (self.prompts and prompt.answers))
                outcome.spent_tokens = outcome.prompt_tokens
            self.prompts.append(outcome)
            self.admission.clear()
        return outcome

    def add_logprobs(self, count: int) -> None:
        """Count log probabilities of the reply. Raises InvalidRequestError at the limit.

        A beam search runs its prompt many times for one reply, so each of its runs counts alone.
        """
        self.logprobs = count + (0 if self.request.beam_search else self.logprobs)
        check_reply_size(self.logprobs)

    def note_admitted(self) -> None:
        """Set `admission` if all prompts are admitted, and none can still be refused for what a selection drops."""
        refuses = self.request.options.lossy == "refuse"
        if all(prompt.admitted and not (refuses and prompt.mode == "") for prompt in self.prompts):
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
            "x-skim-look-ahead": [str(p.tokens_ahead) for p in self.prompts],
        }
        if any(p.catch_up_reason or p.caught_up for p in self.prompts):
            values["x-skim-catch-up"] = [p.catch_up_state for p in self.prompts]
        headers = [lengths, *((name, ", ".join(parts)) for name, parts in values.items())]
        return [*headers, ("server-timing", self._server_timing())] if self.answering else headers

    def _server_timing(self) -> str:
        """The times until the first token. Prompts of one call run concurrently, so each part is that of the slowest
        prompt. The total of a selection without an answer is the time until now."""
        parts: dict[str, float] = {}
        for prompt in self.prompts:
            for name, ms in prompt.timings.items():
                parts[name] = max(parts.get(name, 0.0), ms)
        parts.setdefault(TOTAL, 1e3 * (time.perf_counter() - self.request.arrived))
        return write_server_timing(parts)


CURRENT: ContextVar[CallState | None] = ContextVar("skim_call", default=None)
