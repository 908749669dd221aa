"""`POST /v1/select`: what the speculator keeps of texts for a question, as lines to paste. The target does nothing.

vLLM's renderer makes the prompts, so that a text is tokenized and its places are found as on every other endpoint.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.utils.api_utils import with_cancellation
from vllm.renderers import ChatParams
from vllm.renderers.online_renderer import OnlineRenderer

from kv_transfer.spans import mask_of
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt
from router.dispatch.selection import INLINE_CHARS
from router.dispatch.state import CURRENT, CallState
from router.dispatch.token_budget import TokenBudget
from router.explain.selected_text import PlacedText, SelectedPrompt
from router.http.select_body import Messages, SelectBody, texts_of
from router.options.errors import HttpError, RefusedError
from router.options.request import shown
from router.prompt.contents import ChatContents
from router.prompt.protected_spans import char_ranges
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.symbols import Hook

PATH = "/v1/select"

Result = TypeVar("Result")

HOOK = Hook(
    what="a selection without an answer",
    how=(
        "vLLM: an own route calls the renderer's `render_chat_async` without a limit of length, as the front's"
        " `preprocess_chat` does with one, and ends with the client by `with_cancellation`"
    ),
    until="vLLM renders chats for callers that want no answer, without a limit of length",
    where=("router/vllm_front/select_endpoint.py",),
    symbols=(
        ("vllm.renderers.base", "BaseRenderer.render_chat_async", "self conversations chat_params tok_params"),
        ("vllm.renderers.base", "BaseRenderer.default_chat_tok_params", ""),
        ("vllm.entrypoints.serve.utils.api_utils", "with_cancellation", "handler_func"),
        ("vllm.entrypoints.openai.models.serving", "OpenAIServingModels.is_base_model", "self model_name"),
    ),
)


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
            call.request, chats = body.request(call.request)
            asked = await self._rendered(body, chats, call)
            names = [name] if body.texts is None else [f"{name}-{index}" for index in range(len(asked))]
            told = await _in_order(self._select(*one, body, call) for one in zip(names, asked, strict=True))
        except SkimError as error:
            call.error = HttpError.of(error)  # the middleware sends it
            return Response(status_code=call.error.status)
        call.answering = True
        data = [text for texts in told for text in texts]
        model = body.model or self._models.model_name()
        return JSONResponse({"id": name, "object": "selection", "model": model, "data": data, "usage": _usage(call)})

    def _check_model(self, model: str | None) -> None:
        if model is not None and not self._models.is_base_model(model) and model not in self._models.lora_requests:
            raise RefusedError(404, "NotFoundError", f"the model {shown(model)} does not exist; /v1/models lists all")

    async def _rendered(self, body: SelectBody, chats: Sequence[Messages], call: CallState) -> list[_Asked]:
        """The prompts, with the places of their texts. Raises InvalidRequestError where these are not known."""
        renderer = self._renderer.renderer
        params = ChatParams(
            chat_template=self._renderer.chat_template,
            chat_template_content_format=self._renderer.chat_template_content_format,
            chat_template_kwargs={**self._renderer.default_chat_template_kwargs, "tokenize": False},
        )
        unlimited = replace(renderer.default_chat_tok_params, max_total_tokens=None, max_output_tokens=0)
        _, prompts = await renderer.render_chat_async(chats, params, unlimited)
        asked = []
        for index, prompt in enumerate(prompts):
            chars = len(prompt.get("prompt") or "")
            asked.append(await _apart(chars, _asked, body, index, prompt, call))
        return asked

    async def _select(self, name: str, asked: _Asked, body: SelectBody, call: CallState) -> list[dict[str, Any]]:
        """What was kept of each text of a prompt."""
        request = call.request
        priority = max(0, request.caller.key.min_priority) if request.caller else 0
        prompt = Prompt(asked.rendered, {}, 0, cache_salt=request.salt(None), priority=priority, answers=False)
        prepared, selection = await self._dispatcher.select(name, prompt, call, asked.budget)
        selected = SelectedPrompt(selection, prepared.options, prepared.layout)
        chars, tell = len(asked.rendered.text or ""), partial(selected.as_json, scores=body.scores)
        return [{**where, **await _apart(chars, tell, text)} for where, text in asked.texts]


async def _apart(chars: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """What `work` returns, for a prompt of so many characters. Other requests run beside it if these are many."""
    return await asyncio.to_thread(work, *arguments) if chars > INLINE_CHARS else work(*arguments)


def _asked(body: SelectBody, index: int, prompt: Any, call: CallState) -> _Asked:
    """The prompt of a text, or of the messages. Raises InvalidRequestError where the places of texts are not known."""
    text, offsets = prompt.get("prompt"), prompt.get("prompt_token_offsets")
    chat = call.chats.get(text)
    if text is None or offsets is None or chat is None or chat.contents is None:
        raise InvalidRequestError("the places of texts in this model's prompts are not known: it cannot be asked here")
    ranges = char_ranges(offsets)
    texts = [
        (where, PlacedText(sent, text, content.spans[-1], ranges))
        for (where, sent), content in zip(_texts(body, index, chat), chat.contents, strict=False)
        if content.spans
    ]
    if body.messages is None and not texts:
        raise InvalidRequestError("the model's chat template changes this text, so nothing can be said of its lines")
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


async def _in_order(ways: Iterable[Coroutine[Any, Any, list[dict[str, Any]]]]) -> list[list[dict[str, Any]]]:
    """The results, in order. The first error ends all others, and so does the end of the caller."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _usage(call: CallState) -> dict[str, int]:
    """The tokens of all prompts, with questions and template: as the limits of an API key count them."""
    names = ("prompt_tokens", "kept_tokens", "dropped_tokens")
    return {name: sum(getattr(prompt, name) for prompt in call.prompts) for name in names}
