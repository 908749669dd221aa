"""Makes vLLM's renderer tokenize chats by `router.known_tokens`: of a known conversation, only what is new."""

import asyncio
from typing import Any

from router.context import CURRENT
from router.known_tokens import KnownTokens


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
        if wanted["add_special_tokens"] or not renderer._wants_offsets(prompt, params):
            return await plain(prompt, params)
        context, loop = CURRENT.get(), asyncio.get_running_loop()
        salt = context.salt(context.sent_salt) if context is not None else None
        ids, offsets = await loop.run_in_executor(renderer._executor, known.tokenize, prompt["prompt"], salt)
        if wanted["truncation"] and ids.size > wanted["max_length"]:
            return await plain(prompt, params)
        return {
            "prompt_token_ids": ids.tolist(),
            "prompt_token_offsets": list(zip(*offsets.T.tolist(), strict=True)),
            **prompt,
        }

    renderer._tokenize_prompt_async = tokenize_prompt
    return known
