"""What a client asks: `Request` for one HTTP call, `Prompt` for each of its rendered prompts. Nothing here changes."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from kv_transfer.options import DecodeOptions
from router.admission.rate_limits import Caller
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents
from router.prompt.keep_fields import KeepFields
from router.prompt.protected_spans import Offsets
from skim_common.deadline import NO_DEADLINE, Deadline


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP call. options, decode: resolved from the deployment's and the client's.

    decode_is_explicit: the client has options of its own for drafts. caller: whose API key it has; None if the endpoint
    asks for none. arrived: seconds of `time.perf_counter`. keep_fields: the client's wishes for content parts, whose
    texts are marked in the body. render_only: the client gets the rendered prompt and no answer. later_requests: as in
    `router.options.headers`. deadline: when the answer must be complete.
    """

    options: PrefillOptions
    decode: DecodeOptions
    decode_is_explicit: bool = False
    caller: Caller | None = None
    arrived: float = field(default_factory=time.perf_counter)
    echo: bool = False
    beam_search: bool = False
    keep_fields: KeepFields | None = None
    render_only: bool = False
    later_requests: int | None = None
    deadline: Deadline = NO_DEADLINE

    @property
    def key(self) -> str:
        """The name of the call's API key, never the key; empty without one."""
        return self.caller.key.name if self.caller else ""

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
    """A rendered prompt with its sampling parameters.

    sampling: as in GenerateRequest. chat, text, offsets: the contents of a chat, the text that its template rendered,
    and each token's character range in that text; chat is None for raw prompts.
    """

    token_ids: list[int]
    sampling: Mapping[str, Any]
    max_tokens: int
    prompt_logprobs: bool = False
    chat: ChatContents | None = None
    text: str | None = None
    offsets: Offsets | None = None
    cache_salt: str | None = None
    priority: int = 0
    engine_args: Mapping[str, Any] = field(default_factory=dict)
