"""Prompts as engines read them: rendered by the chat template, tokenized, with the tokens that are never dropped.

The rules are those of serving: `router.prompt.protected_spans` finds the protected tokens, `router.decision.rules`
decides whether the prompt is compressed at all.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster.in_process.template_messages import for_template, reads_parts
from kv_transfer.messages import Float32Array, Int32Array
from kv_transfer.spans import mask_of
from router.decision.rules import Decision, RequestTraits, decide
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents, MarkedChat, without_marks
from router.prompt.frame import frame_messages, frame_of
from router.prompt.keep_fields import messages_with_keeps
from router.prompt.protected_spans import prompt_spans, question_text
from router.prompt.units import units_of
from skim_common.errors import InvalidRequestError
from skim_common.models.info import inspect_model
from skim_common.models.source import local_folder

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""Chat messages as in OpenAI's API: `role` and `content` of each."""

KINDS = "a prompt is text, a list of token ids or a list of chat messages"


def no_spans() -> Int32Array:
    """No protected tokens, int32 [0, 2]."""
    return np.empty((0, 2), np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class RenderedPrompt:
    """A prompt as the models see it.

    token_ids: int32 [M]. protected: int32 [P, 2], half-open, never dropped. question, rate_spans, rates, units,
    indents, links: as in SelectRequest. unmapped: as in PromptSpans. text: what was tokenized; empty for token ids.
    offsets: int64 [M, 2], each token's half-open character range in `text`; None unless it is a rendered chat. chat:
    its contents.
    """

    token_ids: Int32Array
    protected: Int32Array
    question: tuple[int, int] | None = None
    text: str = ""
    offsets: npt.NDArray[np.int64] | None = None
    rate_spans: Int32Array = field(default_factory=no_spans)
    rates: Float32Array = field(default_factory=lambda: np.empty(0, np.float32))
    unmapped: bool = False
    chat: ChatContents | None = None
    units: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    indents: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    links: Int32Array = field(default_factory=no_spans)

    def decide(self, options: PrefillOptions, *, prompt_logprobs: bool = False) -> Decision:
        """Whether serving would compress this prompt for a request with these options."""
        protected = mask_of(self.protected.tolist(), self.token_ids.size)
        traits = RequestTraits(
            self.token_ids.size,
            prompt_logprobs,
            compressible_tokens=int((~protected).sum()),
            rated=self.rates.size > 0,
            unmapped=self.unmapped,
        )
        return decide(traits, options)

    @property
    def question_text(self) -> str:
        """The text in which the guard looks for a kind of question."""
        return question_text(self.question, self.chat, self.text, self.offsets)


PromptInput: TypeAlias = str | Sequence[int] | npt.NDArray[np.integer[Any]] | Messages | RenderedPrompt
"""Text, token ids [M], chat messages, or a prompt that is rendered already."""


def load_tokenizer(model: str) -> Any:
    """The transformers tokenizer of a model, a folder or a hub name. Raises ModelError if there is no such model."""
    from transformers import AutoTokenizer

    inspect_model(model, engine="tokenizer")
    return AutoTokenizer.from_pretrained(local_folder(model, weights=False))


def render(prompt: PromptInput, tokenizer: Any, options: PrefillOptions | None = None) -> RenderedPrompt:
    """The prompt's token ids, its protected spans and its regions with a keep rate of their own.

    Of chat messages, everything but the material of the turns is protected (`router.prompt.protected_spans`); of text
    and token ids, the first token is. options: the spans, ranges and policies of a request. A content part of a message
    may have its own `keep`, as in serving. Raises InvalidRequestError for a prompt that is empty, is none of
    `PromptInput` or that the chat template refuses.
    """
    options = options or PrefillOptions()
    if isinstance(prompt, RenderedPrompt):
        asked = options.protected_spans or options.keep_ranges
        more = prompt_spans(prompt.token_ids.size, options, None, None, None).protected if asked else no_spans()
        prompt = replace(prompt, protected=np.concatenate([prompt.protected, more]))
        return _divided(prompt, more[more < prompt.token_ids.size]) if prompt.units.size else prompt
    try:
        is_empty = not len(prompt)
    except TypeError:  # None, a number, a generator
        raise InvalidRequestError(KINDS) from None
    if is_empty:
        raise InvalidRequestError("the prompt is empty")
    if isinstance(prompt, str):
        _check_text(prompt)
        encoded = tokenizer(prompt, return_offsets_mapping=tokenizer.is_fast)
        return _raw(np.asarray(encoded.input_ids, np.int32), options, prompt, encoded.get("offset_mapping"))
    if all(isinstance(part, Mapping) for part in prompt):
        return _chat(prompt, tokenizer, options)  # type: ignore[arg-type]
    return _raw(as_token_ids(prompt), options)


def _divided(prompt: RenderedPrompt, edges: Int32Array) -> RenderedPrompt:
    """The prompt with units that begin at `edges` too."""
    units = np.union1d(prompt.units, edges).astype(np.int32)
    at = np.searchsorted(prompt.units, units, side="right") - 1
    indents = prompt.indents[at] if prompt.indents.size else prompt.indents
    links = np.searchsorted(units, prompt.units[prompt.links]).astype(np.int32)
    return replace(prompt, units=units, indents=indents, links=links)


def _raw(token_ids: Int32Array, options: PrefillOptions, text: str = "", offsets: Any = None) -> RenderedPrompt:
    if not token_ids.size:
        raise InvalidRequestError("the prompt is empty")
    spans = prompt_spans(token_ids.size, options, None, text, offsets)
    units, indents, links = units_of(text, offsets, spans, options, token_ids.size)
    return RenderedPrompt(
        token_ids,
        spans.protected,
        text=text,
        rate_spans=spans.rate_spans,
        rates=spans.rates,
        units=units,
        indents=indents,
        links=links,
    )


def _chat(messages: Messages, tokenizer: Any, options: PrefillOptions) -> RenderedPrompt:
    if not tokenizer.chat_template:
        raise InvalidRequestError("the model has no chat template: give the prompt as text or token ids")

    def as_given(chat: Messages) -> str:
        return str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))

    parts = reads_parts(as_given)

    def rendered(chat: Messages) -> str:
        return as_given(for_template(chat, parts=parts))

    asked, keeps = messages_with_keeps(messages)
    try:
        text = rendered(without_marks(asked, keeps) if keeps else messages)
        _check_text(text)
        marked = MarkedChat(asked, text, keeps, system="system" in options.keep_by_role)
        chat = marked.contents(rendered(marked.messages))
    except InvalidRequestError:
        raise
    except Exception as error:  # templates raise jinja2's errors and, through it, any other
        raise InvalidRequestError(f"the chat template cannot render these messages: {error}") from error
    lone = None
    with suppress(Exception):  # a template that refuses a lone user message: the prompt is read whole
        lone = rendered(frame_messages())
    chat = chat._replace(frame=frame_of(lone, partial(tokenizer.encode, add_special_tokens=False)))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    token_ids = np.asarray(encoded.input_ids, np.int32)
    spans = prompt_spans(token_ids.size, options, chat, text, encoded.offset_mapping)
    offsets = np.asarray(encoded.offset_mapping, np.int64).reshape(-1, 2)
    units, indents, links = units_of(text, offsets, spans, options, token_ids.size)
    return RenderedPrompt(
        token_ids,
        spans.protected,
        spans.question,
        text,
        offsets,
        spans.rate_spans,
        spans.rates,
        spans.unmapped,
        chat,
        units,
        indents,
        links,
    )


def _check_text(text: str) -> None:
    """Raise InvalidRequestError for a lone surrogate, which a tokenizer cannot read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the prompt has half of a surrogate pair, {text[error.start]!a}, which is no character: read the text "
            "with the encoding that it was written with"
        ) from None


def as_token_ids(prompt: Any) -> Int32Array:
    """Token ids as int32 [M]. Raises InvalidRequestError for anything else."""
    try:
        given = np.asarray(prompt)
    except ValueError:  # lists of different lengths
        given = np.empty((0, 0))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidRequestError(KINDS)
    if given.size and (given.max() > np.iinfo(np.int32).max or given.min() < 0):
        raise InvalidRequestError("token ids are numbers from 0 to 2^31 - 1")
    return given.astype(np.int32)
