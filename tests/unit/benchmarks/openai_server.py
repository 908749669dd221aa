"""A server that answers every streamed request with the same words, and remembers the requests."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

USAGE = {"prompt_tokens": 1200, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 128}}
HEADERS = {"x-skim-mode": "speculative", "x-skim-kept-tokens": "150", "x-skim-reason": "requested"}


@asynccontextmanager
async def openai_server(speculator_cached: int = 1000) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Gives the base URL, and the list to which the bodies are appended.

    It answers as Skim does if the request has the option `speculative_prefill`. speculator_cached: in the explain view.
    """
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        bodies.append(body)
        stream = web.StreamResponse(headers=HEADERS if body.get("speculative_prefill") else {})
        await stream.prepare(request)
        for event in _events(chat="messages" in body):
            await stream.write(f"data: {json.dumps({'id': 'r1', **event})}\n\n".encode())
        return stream

    async def selection(request: web.Request) -> web.Response:
        return web.json_response({"cached_tokens": speculator_cached})

    app = web.Application()
    app.add_routes([web.post(f"/v1/{path}", answer) for path in ("chat/completions", "completions")])
    app.add_routes([web.get("/v1/requests/r1/selection", selection)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", bodies
    finally:
        await runner.cleanup()


def _events(*, chat: bool) -> list[dict[str, Any]]:
    words = (" 12", "34.")
    if not chat:
        return [*({"choices": [{"text": word}]} for word in words), {"choices": [], "usage": USAGE}]
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    return [*({"choices": [{"delta": delta}]} for delta in deltas), {"choices": [], "usage": USAGE}]
