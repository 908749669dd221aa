"""`POST /v1/select`: what the speculator keeps of texts for a question, as lines to paste. The target does nothing.

vLLM's renderer makes the prompts, so that a text is tokenized and its places are found as on every other endpoint.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.utils.api_utils import with_cancellation
from vllm.renderers import ChatParams
from vllm.renderers.online_renderer import OnlineRenderer

from kv_transfer.arrays import mask_of
from router.admission.api_keys import LimitReachedError
from router.dispatch.apart import apart
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt
from router.dispatch.select import TokenBudget
from router.dispatch.state import CURRENT, CallState
from router.explain.selected_text import PlacedText, SelectedPrompt, placed_texts
from router.http.select_body import Messages, SelectBody, texts_of
from router.options.errors import HttpError, RefusedError
from router.options.request import shown
from router.prompt.contents import ChatContents
from router.prompt.protected_spans import char_ranges
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import InvalidRequestError, SkimError

PATH = "/v1/select"

AT_ONCE, MOST_CHARS = 16, 2**17
"""So many texts of a request are selected from at a time, or fewer of so many characters together with their questions,
but one at least. The prompts of the others are not made yet: they take no memory, and no time if the client leaves."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A prompt, its texts with what names them in the answer, and how many of their tokens may be kept. Texts without a
    place in the prompt are not among them; they are kept whole."""

    rendered: RenderedPrompt
    texts: Sequence[tuple[dict[str, int], PlacedText]]
    budget: TokenBudget | None


class SelectEndpoint:
    """renderer, models: of vLLM's app."""

    def __init__(self, dispatcher: Dispatcher, renderer: OnlineRenderer, models: OpenAIServingModels) -> None:
        self._dispatcher, self._renderer, self._models = dispatcher, renderer, models

    def add_route(self, app: FastAPI) -> None:
        """Add `POST /v1/select`."""
        app.post(PATH)(with_cancellation(self.answer))

    async def answer(self, body: SelectBody, raw_request: Request) -> Response:
        """The way of a request: read, render, select each text, tell what was kept."""
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
        return JSONResponse({"id": name, "object": "selection", "model": model, "data": data, "usage": _usage(call)})

    def _check_model(self, model: str | None) -> None:
        if model is not None and not self._models.is_base_model(model) and model not in self._models.lora_requests:
            raise RefusedError(404, "NotFoundError", f"the model {shown(model)} does not exist; /v1/models lists all")

    async def _selected(
        self, name: str, body: SelectBody, chats: Iterator[Messages], call: CallState
    ) -> list[dict[str, Any]]:
        """What was kept of each text, in order. The first error ends all others, and so does the end of the caller."""
        longest = max(map(len, body.texts or [""])) + len(body.question or "")
        places = asyncio.Semaphore(min(AT_ONCE, max(1, MOST_CHARS // max(longest, 1))))
        tasks: list[asyncio.Task[list[dict[str, Any]]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for index, chat in enumerate(chats):
                    await places.acquire()
                    call.request.deadline.check()
                    asked = await self._rendered(body, index, chat, call)
                    own_name = name if body.texts is None else f"{name}-{index}"
                    tasks.append(group.create_task(self._select(own_name, asked, body, call)))
                    tasks[-1].add_done_callback(lambda _: places.release())
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            if isinstance(first, LimitReachedError) and call.prompts:
                raise LimitReachedError(f"{first}, with fewer texts", first.retry_after_s or 1) from None
            raise first from None
        return [text for task in tasks for text in task.result()]

    async def _rendered(self, body: SelectBody, index: int, chat: Messages, call: CallState) -> _Asked:
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
        return await apart(len(text or ""), _asked, body, index, prompt, call.chats.pop(text, None))

    async def _select(self, name: str, asked: _Asked, body: SelectBody, call: CallState) -> list[dict[str, Any]]:
        """What was kept of each text of a prompt."""
        request = call.request
        priority = max(0, request.caller.key.min_priority) if request.caller else 0
        prompt = Prompt(asked.rendered, {}, 0, cache_salt=request.salt(None), priority=priority, answers=False)
        prepared, selection = await self._dispatcher.select(name, prompt, call, asked.budget)
        selected = SelectedPrompt(selection, prepared.options, prepared.layout)
        chars, tell = len(asked.rendered.text or ""), partial(selected.as_json, scores=body.scores)
        return [{**where, **await apart(chars, tell, text)} for where, text in asked.texts]


def _asked(body: SelectBody, index: int, prompt: Any, chat: ChatContents | None) -> _Asked:
    """The prompt of a text, or of the messages. Raises InvalidRequestError where the places of texts are not known."""
    text, offsets = prompt.get("prompt"), prompt.get("prompt_token_offsets")
    if text is None or offsets is None or chat is None or chat.contents is None:
        raise InvalidRequestError("the places of texts in this model's prompts are not known: it cannot be asked here")
    ranges = char_ranges(offsets)
    sent = [
        (where, own, content.spans[-1])
        for (where, own), content in zip(_texts(body, index, chat), chat.contents, strict=False)
        if content.spans
    ]
    placed = placed_texts([own for _, own, _ in sent], text, [span for *_, span in sent], ranges)
    texts = [(where, one) for (where, *_), one in zip(sent, placed, strict=True)]
    if body.messages is None:
        if not all(content.spans for content in chat.contents):
            raise InvalidRequestError(
                "the model's chat template changes this text or the question, so nothing can be said of its lines"
            )
        chat = chat._replace(tasks=chat.contents[-1].spans[-1:])
    rendered, budget = RenderedPrompt(np.asarray(prompt["prompt_token_ids"], np.int32), text, ranges, chat), None
    if body.max_tokens_kept is not None:
        budget = TokenBudget(body.max_tokens_kept, mask_of([placed.tokens for _, placed in texts], rendered.size))
    return _Asked(rendered, texts, budget)


def _texts(body: SelectBody, index: int, chat: ChatContents) -> list[tuple[dict[str, int], str]]:
    """The client's texts that are contents of the chat, in their order, with what names them in the answer."""
    if body.messages is None:
        return [({"index": index}, (body.texts or [body.text or ""])[index])]
    listed = {content.message for content in chat.contents or ()}  # not those of the system
    texts = ((message, part, text) for message, part, text in texts_of(body.messages) if text.strip())
    return [({"message": message, "part": part}, text) for message, part, text in texts if message in listed]


def _usage(call: CallState) -> dict[str, int]:
    """The tokens of all prompts, with questions and template: as the limits of an API key count them."""
    names = ("prompt_tokens", "kept_tokens", "dropped_tokens")
    return {name: sum(getattr(prompt, name) for prompt in call.prompts) for name in names}
