"""The same request to each endpoint of the router."""

import json

from tests.unit.router.conftest import MODEL_NAME

KEEP = {"keep_rate": 0.5}
CHAT_LIKE = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
ENDPOINTS = (*CHAT_LIKE, "/v1/completions")


def request_body(path, document, max_tokens=4, **fields):
    """The request body of each endpoint for the document and its question."""
    prompt = {
        "/v1/chat/completions": {"messages": document.messages, "max_tokens": max_tokens},
        "/v1/completions": {"prompt": document.prompt, "max_tokens": max_tokens},
        "/v1/responses": {"input": document.prompt, "max_output_tokens": max_tokens},
        "/v1/messages": {"messages": document.messages, "max_tokens": max_tokens},
    }[path]
    return {"model": MODEL_NAME, **prompt, **fields}


async def ask(client, path, body, **kwargs):
    response = await client.post(path, json=body, **kwargs)
    assert response.status_code == 200, response.text
    return response


def events(response):
    """The JSON objects in a stream of server-sent events."""
    lines = (line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]
