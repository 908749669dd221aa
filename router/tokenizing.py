"""Makes vLLM's renderer tokenize chats by `router.known_tokens`: of a known conversation, only what is new."""

import asyncio
from typing import Any

import numpy as np

from router.context import CURRENT
from router.known_tokens import KnownTokens

INLINE_CHARS = 16384
"""A text of so many characters takes a few ms. That is less than the way to a thread and back under load."""


def reuse_known_tokens(renderer: Any) -> KnownTokens | None:
    """Replace `_tokenize_prompt_async` of this `renderer` (vllm.renderers.BaseRenderer). None if its tokenizer is not
    fit for it.

    Only prompts whose offsets are asked for (`router.recording`) and that get no tokens around them. The others, and
    those that are too long, go vLLM's own way.
    """
    known = KnownTokens.of(renderer.tokenizer)
    if known is None:
        return None
    plain = renderer._tokenize_prompt_async

    async def tokenize_prompt(prompt: Any, params: Any) -> Any:
        wanted = params.get_encode_kwargs()
        context = CURRENT.get()
        # What is only rendered is shown to the client, which gets vLLM's own types.
        if context is None or context.render_only:
            return await plain(prompt, params)
        if wanted["add_special_tokens"] or not renderer._wants_offsets(prompt, params):
            return await plain(prompt, params)
        salt = context.salt(context.sent_salt)
        text = prompt["prompt"]
        if len(text) <= INLINE_CHARS:
            ids, offsets = known.tokenize(text, salt)
        else:
            loop = asyncio.get_running_loop()
            ids, offsets = await loop.run_in_executor(renderer._executor, known.tokenize, text, salt)
        if wanted["truncation"] and ids.size > wanted["max_length"]:
            return await plain(prompt, params)
        # A list of pairs would cost as much to make and to read again as all the rest of this.
        return {"prompt_token_ids": ids.tolist(), "prompt_token_offsets": offsets.astype(np.int64), **prompt}

    renderer._tokenize_prompt_async = tokenize_prompt
    return known
