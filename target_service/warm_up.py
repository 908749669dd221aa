"""Reads a prompt into a target engine's prefix cache, without an answer."""

from contextlib import aclosing

from kv_transfer.messages import GenerateRequest, WarmUpRequest
from kv_transfer.options import DecodeOptions
from target_service.engine import TargetEngine

# An engine has no request without an output token.
_ONE_TOKEN = {"max_tokens": 1, "temperature": 0.0, "detokenize": False}


async def warm_up(engine: TargetEngine, request: WarmUpRequest) -> bool:
    """Read the prompt. False if the engine has no prefix cache.

    Raises InvalidRequestError for a prompt that the engine cannot read.
    """
    if not engine.caches_prefixes:
        return False
    read = GenerateRequest(
        request.request_id,
        request.prompt,
        _ONE_TOKEN,
        cache_salt=request.cache_salt,
        decode=DecodeOptions(method="none"),
    )
    async with aclosing(engine.generate(read)) as outputs:
        async for _ in outputs:
            pass
    return True
