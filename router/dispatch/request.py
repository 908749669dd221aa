"""What a client asks: `Request` for one HTTP call, `Prompt` for each of its rendered prompts, and `Prepared`, with what
is known of a prompt before its mode is chosen. Nothing here changes."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from kv_transfer.drafts import UNDRAFTED
from kv_transfer.layout import TextLayout
from kv_transfer.messages import Envelope, GenerateRequest, KeptPrompt
from kv_transfer.options import ALWAYS, DecodeOptions
from router.admission.api_keys import Caller
from router.decision.choice import Decision
from router.decision.forecast import Forecast
from router.options.request import SYSTEM_ROLES, PrefillOptions
from router.prompt.context_edits import Edit
from router.prompt.markers import KeepFields
from router.prompt.rendered import PromptSpans, RenderedPrompt
from skim_common.deadline import NO_DEADLINE, Deadline


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP call. Its options are the deployment's, overridden by the client's."""

    options: PrefillOptions
    decode: DecodeOptions
    decode_is_explicit: bool = False  # the client has options of its own for drafts
    caller: Caller | None = None  # whose API key it has; None if the endpoint asks for none
    arrived: float = field(default_factory=time.perf_counter)
    echo: bool = False
    beam_search: bool = False
    keep_fields: KeepFields | None = None  # the client's wishes for content parts, whose texts are marked in the body
    edits: tuple[Edit, ...] = ()  # what leaves a long chat
    render_only: bool = False  # the client gets the rendered prompt and no answer
    later_requests: int | None = None  # as in `router.options.headers`
    has_tools: bool = False  # it offers tools to the model
    deadline: Deadline = NO_DEADLINE

    @property
    def key(self) -> str:
        """The name of the call's API key, never the key; empty without one."""
        return self.caller.key.name if self.caller else ""

    def decode_for(self, sampling: Mapping[str, Any]) -> DecodeOptions:
        """The decoding options of a prompt with these sampling parameters.

        A seeded prompt gets no drafts unless the client asks for some: which tokens are drafted in time, and accepted,
        decides which random numbers are used.
        """
        sampled = (sampling.get("temperature", 1.0) or 0.0) > 0
        if sampled and sampling.get("seed") is not None and not self.decode_is_explicit:
            return self.decode.model_copy(update={"method": "none"})
        return self.decode

    def salt(self, sent: str | None, adapter: str | None = None) -> str | None:
        """The cache salt for the engines. sent: the client's own. adapter: the name of the one that answers; no adapter
        has the KV of another.

        It is a digest, so no client can send the salt of another key, another adapter or of Skim itself."""
        owner = None if self.caller is None else self.key if self.caller.key.isolate_cache else ""
        if not (owner or sent or adapter):
            return None
        return blake2b(json.dumps([owner, sent, adapter]).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A rendered prompt with its sampling parameters, as in GenerateRequest."""

    rendered: RenderedPrompt
    sampling: Mapping[str, Any]
    max_tokens: int
    prompt_logprobs: bool = False
    cache_salt: str | None = None
    priority: int = 0
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    answers: bool = True  # False: the client gets a selection and no answer


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A prompt with what is known before its mode is chosen. What the load leaves out makes another one."""

    prompt: Prompt
    request_id: str  # the client may have chosen it, and knows it
    options: PrefillOptions  # that count for this prompt
    decode: DecodeOptions
    spans: PromptSpans  # their layout has units when the prompt is selected from
    ruled: Decision  # what the rules say
    advice: str  # of the guard: whole-text or none; empty if it does not act
    forecast: Forecast
    affinity: str = ""
    started: float = field(default_factory=time.perf_counter)
    suffix: str = field(default_factory=partial(secrets.token_urlsafe, 16))

    @property
    def wire_id(self) -> str:
        """The pools' id of the prompt and of its drafting session, which no client can know or choose."""
        return f"{self.request_id}~{self.suffix}"

    @property
    def size(self) -> int:
        """The number of the prompt's tokens."""
        return self.prompt.rendered.size

    @property
    def layout(self) -> TextLayout:
        return self.spans.layout

    @property
    def may_select(self) -> bool:
        """Whether the prompt may be selected from, as far as it is known before its mode is chosen."""
        chosen = self.options.enabled == ALWAYS or self.forecast.choice.speculative
        return not self.prompt.answers or (self.ruled.speculative and self.advice != "whole-text" and chosen)

    def generate_request(self, kept: KeptPrompt) -> GenerateRequest:
        """What the target is asked, to answer this kept prompt."""
        prompt, envelope = self.prompt, Envelope(affinity=self.affinity)
        return GenerateRequest(
            self.wire_id,
            kept,
            prompt.sampling,
            prompt.priority,
            prompt.cache_salt,
            prompt.engine_args,
            self.decode,
            envelope=envelope,
        )

    def with_units(self) -> "Prepared":
        """The prompt with the units of its text, for a selection."""
        if self.layout.units.size:
            return self
        layout = self.prompt.rendered.layout(self.options, self.spans)
        return replace(self, spans=self.spans._replace(layout=layout))

    @property
    def uses_drafts(self) -> bool:
        """Whether the answer can use drafts of a session. Its last token needs none."""
        most = self.prompt.max_tokens  # 0: any number
        return self.prompt.answers and self.decode.method == "remote" and (not most or most > UNDRAFTED + 1)

    @property
    def reads_for_drafts(self) -> bool:
        """Whether the speculator reads the kept prompt for drafts. Over the whole prompt, the scores have read it."""
        return self.uses_drafts and (self.forecast.way != "whole" or self.decode.draft_context == "kept")

    @property
    def is_system_prompt(self) -> bool:
        """Whether most of it is a system prompt, from which selection needs a choice."""
        chat = self.prompt.rendered.chat
        return chat is not None and 2 * self.spans.opening > self.size and any(r in SYSTEM_ROLES for r in chat.roles)
