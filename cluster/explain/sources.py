"""Where an explanation and its prompt's text come from: a speculator in this process, or a running endpoint."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from cluster.explain.prompt_text import PromptText, read_token_text
from cluster.in_process.async_pair import AsyncPair, EngineSettings
from cluster.in_process.prompts import Messages, render
from cluster.json_file import read_json, read_text
from kv_transfer.messages import SelectRequest
from router.explain.explained import Explained
from router.options.request import PrefillOptions
from skim_common.errors import SkimError
from skim_common.models.info import load_tokenizer
from skim_common.proxies import client_options

HTTP_TIMEOUT_S = 30.0


class Source(NamedTuple):
    """explanation: as `Explained.as_json`. prompt: the text of its tokens."""

    explanation: dict[str, Any]
    prompt: PromptText


def read_prompt_file(path: Path, *, chat: bool) -> str | Messages:
    """The prompt of a file: text, or of a .json file the messages of a chat (a list, or an object with `messages`).

    chat: text is one user turn. Raises SkimError.
    """
    if path.suffix != ".json":
        text = read_text(path)
        return [{"role": "user", "content": text}] if chat else text
    messages = read_json(path)
    if isinstance(messages, Mapping):
        messages = messages.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, Mapping) for one in messages):
        raise SkimError(f"{path} must hold a list of chat messages, or an object with `messages`")
    return messages


def from_prompt(
    prompt: str | Messages,
    speculator: str,
    target: str,
    options: PrefillOptions,
    *,
    engine: str = "vllm",
    engine_options: Mapping[str, Any] | None = None,
) -> Source:
    """Select from a prompt as serving does, on a speculator engine that is started for it.

    target: the model whose tokens are selected. options: of a request; those that decide between dense and speculative
    have no effect. engine, engine_options: of the speculator. Raises SkimError.
    """
    tokenizer, tokens = load_tokenizer(target), read_token_text(target)
    rendered = render(prompt, tokenizer, options)
    layout = rendered.layout(options)

    async def select() -> Explained:
        settings = EngineSettings(speculator, engine, engine_options or {})
        pair = AsyncPair(speculator=settings, reads_for=target)
        try:
            await pair.ensure_heads()
            request = SelectRequest(pair.name("select"), rendered.token_ids, options.selection, layout)
            selection = await pair.select(request)
        finally:
            await pair.close()
        return Explained(selection, options.selection, layout, selection.timings)

    explained = asyncio.run(select())
    return Source(explained.as_json(), PromptText.of(rendered, tokens))


def from_request(
    url: str,
    request_id: str,
    prompt: str | Messages,
    target: str,
    *,
    key: str | None = None,
) -> Source:
    """The explain view of a running endpoint. url: with or without /v1. key: its API key.

    The endpoint holds no text: it is that of `prompt`, rendered for the model `target`.
    Raises SkimError if the endpoint does not answer or has no entry, or if the prompt does not fit it.
    """
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(
            f"{base}/v1/requests/{quote(request_id, safe='')}/selection",
            headers=headers,
            timeout=HTTP_TIMEOUT_S,
            **client_options(base),
        )
        explanation = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise SkimError(f"the endpoint {base} did not answer: {error or type(error).__name__}") from None
    if answer.status_code != httpx.codes.OK or not isinstance(explanation, dict) or "prompt_tokens" not in explanation:
        told = explanation.get("error") if isinstance(explanation, dict) else None
        message = told.get("message") if isinstance(told, dict) else told
        raise SkimError(f"the endpoint {base} answered {answer.status_code}: {message or 'it is no Skim endpoint'}")
    tokens = int(explanation["prompt_tokens"])
    rendered = render(prompt, load_tokenizer(target))
    if rendered.token_ids.size != tokens:
        raise SkimError(f"the prompt has {rendered.token_ids.size} tokens for {target}, the request had {tokens}")
    return Source(explanation, PromptText.of(rendered, read_token_text(target)))
