"""`POST /v1/select`: what the speculator keeps of texts for a question, as lines to paste. The target does nothing.

vLLM's renderer makes the prompts, so that a text is tokenized and its places are found as on every other endpoint.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
from pydantic import BaseModel, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.renderers import ChatParams
from vllm.renderers.online_renderer import OnlineRenderer

from kv_transfer.arrays import mask_of
from kv_transfer.options import ALWAYS
from router.admission.api_keys import LimitReachedError
from router.dispatch.apart import apart
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.select import TokenBudget
from router.dispatch.state import CURRENT, CallState
from router.explain.selected_text import PlacedText, SelectedPrompt, placed_texts
from router.options.errors import HttpError, InvalidOptionError, RefusedError
from router.options.request import DECODE, PREFILL, PolicyOptions, PrefillOptions, clipped, shown
from router.prompt.contents import ChatContents, changed
from router.prompt.markers import KeepFields, messages_with_keeps
from router.prompt.protected_spans import char_ranges
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import InvalidRequestError, SkimError

PATH = "/v1/select"

AT_ONCE, MAX_CHARS = 16, 2**17
"""So many texts of a request are selected from at a time, or fewer of so many characters together with their questions,
but one at least. The prompts of the others are not made yet: they take no memory, and no time if the client leaves."""

MAX_TEXTS = 1024

_OF_ANSWERS = (*(name for name in PrefillOptions.model_fields if name not in PolicyOptions.model_fields), "reuse")
"""Options that say whether and how a target reads the kept prompt, or name places in a prompt that no client knows."""
_OF_CHATS = ("keep_by_role", "protect_tools", "keep_short")

Messages = list[dict[str, Any]]
PlacedTexts = list[tuple[dict[str, int], PlacedText]]
"""The texts of a prompt with what names them in the answer. Those without a place in it are missing, and kept whole."""


class SelectBody(BaseModel, extra="allow", strict=True):
    """Either `messages`, or `question` with `text` or `texts`.

    max_tokens_kept: the most tokens that are kept of each text, or of all messages together. scores: the answer has the
    score of each unit. speculative_prefill: as on every endpoint (the middleware reads it).
    """

    model: str | None = None
    messages: Messages | None = Field(None, min_length=1)
    text: str | None = None
    texts: list[str] | None = Field(None, min_length=1, max_length=MAX_TEXTS)
    question: str | None = None
    max_tokens_kept: int | None = Field(None, ge=1)
    scores: bool = False
    speculative_prefill: Any = None

    def check(self, max_bytes: int) -> None:
        """Raise InvalidOptionError for a body that does not fit, and RefusedError if its question, which is read with
        each text, makes more than `max_bytes` of it."""
        if unknown := next(iter(self.model_extra or ()), None):
            name, known = clipped(unknown), ", ".join(type(self).model_fields)
            raise InvalidOptionError(f"unknown field {name}; the fields are {known}", name)
        given = [name for name in ("messages", "text", "texts") if getattr(self, name) is not None]
        if len(given) != 1:
            message = f"give one of messages, text and texts, not {' and '.join(given) or 'none of them'}"
            raise InvalidOptionError(message, given[-1] if given else "text")
        if self.messages is not None:
            if self.question is not None:
                raise InvalidOptionError("question goes with text or texts; messages ask by themselves", "question")
            return
        texts = {"text": self.text} if self.texts is None else {f"texts.{i}": one for i, one in enumerate(self.texts)}
        for name, text in {**texts, "question": self.question}.items():
            if not (text and text.strip()):
                raise InvalidOptionError(f"{name} is missing or blank; give it some text", name)
        size = sum(map(_bytes_of, texts.values())) + len(texts) * _bytes_of(self.question)
        if size > max_bytes:
            message = (
                f"the question is read with each of the {len(texts)} texts, together {size} bytes, but this server's "
                f"limit is {max_bytes}; shorten the question or send fewer texts"
            )
            raise RefusedError(413, "RequestTooLargeError", message)

    def request(self, request: Request, max_bytes: int) -> tuple[Request, Iterator[Messages]]:
        """The call with the options of a selection, and the chats to render, one for each text, with the marks of
        their `keep` fields. Each is made when it is asked for, so that a question is not held with all texts at once.

        request: as the middleware read it. Raises InvalidRequestError, and RefusedError as `check`.
        """
        self.check(max_bytes)
        options = request.options
        what = "this endpoint" if self.messages is not None else "a text on this endpoint"
        idle = (*_OF_ANSWERS, *(() if self.messages is not None else _OF_CHATS))
        names = [f"{PREFILL.name}.{name}" for name in idle if name in options.model_fields_set]
        if request.decode_is_explicit:
            names, what = [DECODE.name], "this endpoint"
        if names:
            raise InvalidOptionError(f"{names[0]} has no effect on {what}; leave it out", names[0])
        fixed: dict[str, Any] = {"enabled": ALWAYS, "min_prompt_tokens": 1, "lossy": "allow", "reuse": "off"}
        if self.messages is None and "protect_last" not in options.model_fields_set:
            fixed["protect_last"] = 1  # the prompt ends with the question, which is kept
        if self.messages is not None:
            marked, keeps = messages_with_keeps(self.messages)
            chats = iter([marked])
        else:
            texts, question = self.texts or [self.text or ""], self.question or ""
            keeps = KeepFields(question, *texts)
            keeps.keeps, keeps.names = ["auto", "always"], ["text", "question"]
            # Two parts of one user turn, so that neither is searched for the other.
            last = {"type": "text", "text": keeps.around(1, question)}
            parts = ({"type": "text", "text": keeps.around(0, text)} for text in texts)
            chats = ([{"role": "user", "content": [part, last]}] for part in parts)
        return replace(request, options=options.model_copy(update=fixed), keep_fields=keeps), chats

    def texts_of(self, index: int, chat: ChatContents) -> list[tuple[dict[str, int], str]]:
        """The client's texts that are contents of a chat, in their order, with what names them in the answer. index: of
        the chat."""
        if self.messages is None:
            return [({"index": index}, (self.texts or [self.text or ""])[index])]
        listed = {content.message for content in chat.contents or ()}  # not those of the system
        texts: list[tuple[dict[str, int], str]] = []
        counts = Counter[int]()

        def note(message: int, text: str) -> str:
            if text.strip() and message in listed:
                texts.append(({"message": message, "part": counts[message]}, text))
            counts[message] += 1
            return text

        changed(self.messages, note)
        return texts


def _bytes_of(text: str | None) -> int:
    return len((text or "").encode())


class SelectEndpoint:
    """Answers the route by `answer`. renderer, models: of vLLM's app."""

    def __init__(self, dispatcher: Dispatcher, renderer: OnlineRenderer, models: OpenAIServingModels) -> None:
        self._dispatcher, self._renderer, self._models = dispatcher, renderer, models

    async def answer(self, body: SelectBody, raw_request: HttpRequest) -> Response:
        """Read, render, select from each text, tell what was kept."""
        call = CURRENT.get()
        assert call is not None
        name = f"select-{raw_request.headers.get('x-request-id') or uuid4().hex}"
        try:
            self._check_model(body.model)
            call.request, chats = body.request(call.request, self._dispatcher.settings.max_body_bytes)
            data = await self._selected(name, body, chats, call)
        except SkimError as error:
            call.error = HttpError.of(error)  # the middleware sends it
            return Response(status_code=call.error.status)
        call.answering = True
        model = body.model or self._models.model_name()
        # Of all prompts, with questions and template: as the limits of an API key count them.
        counts = ("prompt_tokens", "kept_tokens", "dropped_tokens")
        usage = {count: sum(getattr(prompt, count) for prompt in call.prompts) for count in counts}
        return JSONResponse({"id": name, "object": "selection", "model": model, "data": data, "usage": usage})

    def _check_model(self, model: str | None) -> None:
        if model is not None and not self._models.is_base_model(model) and model not in self._models.lora_requests:
            raise RefusedError(404, "NotFoundError", f"the model {shown(model)} does not exist; /v1/models lists all")

    async def _selected(
        self, name: str, body: SelectBody, chats: Iterator[Messages], call: CallState
    ) -> list[dict[str, Any]]:
        """What was kept of each text, in order. The first error ends all others, and so does the end of the caller."""
        longest = max(map(len, body.texts or [""])) + len(body.question or "")
        places = asyncio.Semaphore(min(AT_ONCE, max(1, MAX_CHARS // max(longest, 1))))
        tasks: list[asyncio.Task[list[dict[str, Any]]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for index, chat in enumerate(chats):
                    await places.acquire()
                    call.request.deadline.check()
                    rendered, texts = await self._rendered(body, index, chat, call)
                    prompt_name = name if body.texts is None else f"{name}-{index}"
                    tasks.append(group.create_task(self._select(prompt_name, rendered, texts, body, call)))
                    tasks[-1].add_done_callback(lambda _: places.release())
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            if isinstance(first, LimitReachedError) and call.prompts:
                raise LimitReachedError(f"{first}, with fewer texts", first.retry_after_s or 1) from None
            raise first from None
        return [text for task in tasks for text in task.result()]

    async def _rendered(
        self, body: SelectBody, index: int, chat: Messages, call: CallState
    ) -> tuple[RenderedPrompt, PlacedTexts]:
        """The prompt of a chat, with the places of its texts. Raises InvalidRequestError where they are not known."""
        renderer = self._renderer.renderer
        params = ChatParams(
            chat_template=self._renderer.chat_template,
            chat_template_content_format=self._renderer.chat_template_content_format,
            chat_template_kwargs={**self._renderer.default_chat_template_kwargs, "tokenize": False},
        )
        unlimited = replace(renderer.default_chat_tok_params, max_total_tokens=None, max_output_tokens=0)
        _, [prompt] = await renderer.render_chat_async([chat], params, unlimited)
        text = prompt.get("prompt")
        return await apart(len(text or ""), _placed, body, index, prompt, call.chats.pop(text, None))

    async def _select(
        self, name: str, rendered: RenderedPrompt, texts: PlacedTexts, body: SelectBody, call: CallState
    ) -> list[dict[str, Any]]:
        """What was kept of each text of a prompt."""
        request, budget = call.request, None
        if body.max_tokens_kept is not None:
            budget = TokenBudget(body.max_tokens_kept, mask_of([placed.tokens for _, placed in texts], rendered.size))
        priority = max(0, request.caller.key.min_priority) if request.caller else 0
        prompt = Prompt(rendered, {}, 0, cache_salt=request.salt(None), priority=priority, answers=False)
        prepared, selection = await self._dispatcher.select(name, prompt, call, budget)
        selected = SelectedPrompt(selection, prepared.options, prepared.layout)
        chars, tell = len(rendered.text or ""), partial(selected.as_json, scores=body.scores)
        return [{**where, **await apart(chars, tell, text)} for where, text in texts]


def _placed(body: SelectBody, index: int, prompt: Any, chat: ChatContents | None) -> tuple[RenderedPrompt, PlacedTexts]:
    """The prompt of a text, or of the messages. Raises InvalidRequestError where the places of texts are not known."""
    text, offsets = prompt.get("prompt"), prompt.get("prompt_token_offsets")
    if text is None or offsets is None or chat is None or chat.contents is None:
        raise InvalidRequestError("the places of texts in this model's prompts are not known: it cannot be asked here")
    ranges = char_ranges(offsets)
    sent = [
        (where, part, content.spans[-1])
        for (where, part), content in zip(body.texts_of(index, chat), chat.contents, strict=False)
        if content.spans
    ]
    placed = placed_texts([part for _, part, _ in sent], text, [span for *_, span in sent], ranges)
    texts = [(where, one) for (where, *_), one in zip(sent, placed, strict=True)]
    if body.messages is None:
        if not all(content.spans for content in chat.contents):
            raise InvalidRequestError(
                "the model's chat template changes this text or the question, so nothing can be said of its lines"
            )
        chat = chat._replace(tasks=chat.contents[-1].spans[-1:])
    return RenderedPrompt(np.asarray(prompt["prompt_token_ids"], np.int32), text, ranges, chat), texts
