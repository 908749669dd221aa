"""What Skim changes in vLLM's renderer: each chat is recorded, and the tokens of a known conversation are used again.

The engine client gets token ids only; what they were rendered from is found here.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from cachetools import LRUCache

from kv_transfer.layout import Frame
from router.dispatch.apart import apart
from router.dispatch.state import CURRENT, CallState
from router.options.errors import HttpError
from router.options.request import shown
from router.prompt.contents import ChatContents, MarkedChat, Messages, changed, chars_of, without_marks
from router.prompt.context_edits import ClearThinking, without_thinking, without_tool_uses
from router.prompt.control_tokens import ControlTokens
from router.prompt.rendered import frame_messages, frame_of, settings_of
from router.prompt.token_cache import KnownTokens
from skim_common.errors import InvalidRequestError

logger = logging.getLogger(__name__)


FRAMES = 16
"""So many frames are held: one for each set of parameters of the chat template."""


@contextmanager
def refusing(call: CallState) -> Iterator[None]:
    """Note an InvalidRequestError for the client, and raise what vLLM's app answers with a 400."""
    try:
        yield
    except InvalidRequestError as error:
        call.error = HttpError.of(error)
        raise ValueError(str(error)) from None


def check_roles(conversations: Iterable[Messages]) -> None:
    """Raise InvalidRequestError for a message without a role: also vLLM's form of an item that it does not know."""
    for number, message in chain.from_iterable(map(enumerate, conversations)):
        if isinstance(message.get("role"), str):
            continue
        if (kind := message.get("type")) not in (None, "message"):
            raise InvalidRequestError(unsupported_item(kind))
        raise InvalidRequestError(f"message {number} has no role; give it one, such as user")


def unsupported_item(kind: Any) -> str:
    """The sentence about an item of /v1/responses. kind: its type."""
    return (
        f"an item of the type {shown(kind)} is not supported here; the input may have the types message, reasoning, "
        "function_call and function_call_output"
    )


class ChatRecorder:
    """Records each chat of a `renderer` (vllm.renderers.BaseRenderer) in the call's state, and asks for the tokens'
    character offsets.

    All chat-like endpoints render with `render_chat_async`, raw prompts with `render_cmpl_async`; both tokenize with
    `_tokenize_prompt_async`. The three are replaced on this instance. For the places of the contents, a chat is
    rendered again with `render_messages_async`.
    """

    def __init__(self, renderer: Any, control_tokens: ControlTokens | None = None) -> None:
        """control_tokens: handles those in the texts of messages; None leaves them."""
        self._renderer, self._control_tokens = renderer, control_tokens
        self._plain_chat, self._plain_completions = renderer.render_chat_async, renderer.render_cmpl_async
        self._plain_tokenize, self._token_cache = renderer._tokenize_prompt_async, KnownTokens.of(renderer.tokenizer)
        self._frames: LRUCache[str, Frame | None] = LRUCache(FRAMES)
        renderer.render_chat_async, renderer.render_cmpl_async = self.render_chat, self.render_completions
        renderer._tokenize_prompt_async = self.tokenize_prompt

    async def tokenize_prompt(self, prompt: Any, params: Any) -> Any:
        """As vLLM's `_tokenize_prompt_async`, but the known beginning of a text is not tokenized again.

        Not of prompts without offsets, with tokens around them or that are too long, nor of what is only rendered: it
        is shown to the client in vLLM's own types.
        """
        call, cache, wanted = CURRENT.get(), self._token_cache, params.get_encode_kwargs()
        is_shown = call is None or call.request.render_only
        plain = is_shown or wanted["add_special_tokens"] or not self._renderer._wants_offsets(prompt, params)
        if call is not None and cache is not None and not plain:
            text = prompt["prompt"]
            ids, offsets = await apart(len(text), cache.tokenize, text, call.request.salt(call.sent_salt))
            if not (wanted["truncation"] and ids.size > wanted["max_length"]):
                # A list of pairs would cost as much to make and to read again as all the rest of this.
                return {"prompt_token_ids": ids.tolist(), "prompt_token_offsets": offsets.astype(np.int64), **prompt}
        return await self._plain_tokenize(prompt, params)

    async def render_chat(self, conversations: Any, chat_params: Any, tok_params: Any = None, **kwargs: Any) -> Any:
        """As vLLM's `render_chat_async`."""
        call, marked = CURRENT.get(), [changed(messages) for messages in conversations]
        if call is None:
            return await self._plain_chat(marked, chat_params, tok_params, **kwargs)
        request, call.sent_salt = call.request, (kwargs.get("prompt_extras") or {}).get("cache_salt")
        with refusing(call):
            check_roles(marked)
        edits = [await self._edited(messages, call, chat_params, tok_params, kwargs) for messages in marked]
        chats, chars = [chat for chat, _ in edits], sum(map(chars_of, marked))
        if keeps := request.keep_fields:
            chats = await apart(chars, lambda: [without_marks(chat, keeps) for chat in chats])
        control = self._control_tokens
        with refusing(call):
            as_text = control is not None and await apart(chars, lambda: any(map(control.in_chat, chats)))
        if as_text or (request.options.enabled and not request.render_only):
            tok_params = replace(tok_params or self._renderer.default_chat_tok_params, return_token_offsets=True)
        rendered, prompts = await self._plain_chat(chats, chat_params, tok_params, **kwargs)
        for (messages, applied), prompt in zip(edits, prompts, strict=True):
            sizes = pairwise([*(size for _, size in applied), len(prompt.get("prompt_token_ids") or ())])
            for (edit, _), (before, after) in zip(applied, sizes, strict=True):
                call.edits.append({**edit, "cleared_input_tokens": before - after})
            call.chats[prompt.get("prompt")] = await self._contents(messages, call, chat_params, prompt)
            if as_text:
                await self._make_text(prompt, call)
        return rendered, prompts

    async def render_completions(self, prompts: Any, tok_params: Any = None, **kwargs: Any) -> Any:
        """As vLLM's `render_cmpl_async`."""
        call = CURRENT.get()
        if call is not None and not call.request.render_only and call.request.options.enabled is not False:
            tok_params = replace(tok_params or self._renderer.default_cmpl_tok_params, return_token_offsets=True)
        return await self._plain_completions(prompts, tok_params, **kwargs)

    async def _edited(
        self, messages: Messages, call: CallState, params: Any, tok_params: Any, kwargs: Any
    ) -> tuple[Messages, list[tuple[dict[str, Any], int]]]:
        """The messages after `context_management`, and its edits that changed them, with the tokens before each."""
        applied = []
        unlimited = replace(
            tok_params or self._renderer.default_chat_tok_params,
            max_total_tokens=None,
            max_output_tokens=0,
            truncate_prompt_tokens=None,
            return_token_offsets=True,
        )
        for edit in call.request.edits:
            keeps, chars = call.request.keep_fields, chars_of(messages)
            plain = await apart(chars, without_marks, messages, keeps) if keeps else messages
            _, [prompt] = await self._plain_chat([plain], params, unlimited, **kwargs)
            chat = await self._contents(messages, call, params, prompt)
            with refusing(call):
                if isinstance(edit, ClearThinking):
                    edited, counts = without_thinking(edit, messages)
                else:
                    offsets, kept = prompt.get("prompt_token_offsets"), call.request.options.protect_tools
                    arguments = edit, messages, chat, offsets, self._tokens_of, kept
                    edited, counts = await apart(chars, without_tool_uses, *arguments)
            if any(counts.values()):
                messages = edited
                applied.append(({"type": edit.type, **counts}, len(prompt["prompt_token_ids"])))
        return messages, applied

    def _tokens_of(self, text: str) -> int:
        return len(self._renderer.tokenizer.encode(text, add_special_tokens=False)) if text else 0

    async def _contents(self, messages: Any, call: CallState, params: Any, prompt: Any) -> ChatContents:
        """Where the contents of `messages`, which have the marks of the `keep` fields, are in the rendered `prompt`,
        and the frame of windows."""
        text, keeps = prompt.get("prompt") or "", call.request.keep_fields
        with refusing(call):
            system = "system" in call.request.options.keep_by_role
            chat = await apart(len(text), partial(MarkedChat, messages, text, keeps, system=system))
        # Without offsets the places would have no use. The parts of a multimodal prompt are not fetched twice.
        if prompt.get("prompt_token_offsets") is None or prompt.get("type") != "token":
            return chat.contents(None)
        marked = await self._text_of(chat.messages, params, "a chat is not mapped", "marked contents")
        contents = await apart(len(text), chat.contents, marked)
        if call.request.options.read == "whole" or contents.contents is None:
            return contents
        return contents._replace(frame=await self._frame(params))

    async def _frame(self, params: Any) -> Frame | None:
        """The frame of windows with these parameters of the template; None if it refuses a single user message."""
        settings = settings_of(params.chat_template_kwargs)
        params = replace(params, chat_template_kwargs=settings, tool_choice=None, response_format=None)
        if (key := repr(params)) not in self._frames:
            encode = partial(self._renderer.tokenizer.encode, add_special_tokens=False)
            text = await self._text_of(frame_messages(), params, "prompts are read whole", "a lone user message")
            self._frames[key] = frame_of(text, encode)
        return self._frames[key]

    async def _text_of(self, messages: Messages, params: Any, effect: str, what: str) -> str | None:
        """The rendered messages; None if the template refuses them. effect, what: for the log."""
        try:
            _, rendered = await self._renderer.render_messages_async(messages, params)
        except Exception:
            logger.warning("%s: its template refuses %s", effect, what, exc_info=True)
            return None
        text: str | None = rendered.get("prompt")
        return text

    async def _make_text(self, prompt: Any, call: CallState) -> None:
        """Make plain text of the control tokens in the messages' texts."""
        text, ids, offsets = prompt["prompt"], prompt["prompt_token_ids"], prompt.get("prompt_token_offsets")
        assert self._control_tokens is not None
        with refusing(call):
            if isinstance(offsets, np.ndarray):
                offsets = [(start, end) for start, end in offsets.tolist()]
            plain = await apart(len(text), self._control_tokens.as_text, text, ids, offsets, call.chats[text])
            prompt["prompt_token_ids"], prompt["prompt_token_offsets"] = plain
