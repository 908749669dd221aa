"""Requests through the middleware, to small apps that stream as vLLM does."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from router.admission.api_keys import ApiKey, Caller, KeyUse, hash_of
from router.admission.controller import Admission
from router.dispatch.request import Prompt
from router.dispatch.state import CURRENT
from router.explain.log import RequestLog
from router.http.middleware import SkimMiddleware
from router.options.errors import HttpError
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.prompt.rendered import RenderedPrompt
from tests.unit.actors.local_meter import LocalMeter

DEFAULTS = PrefillOptions(keep_rate=0.25)
A_HUNDRED = Prompt(RenderedPrompt(np.ones(100, np.int32)), {}, 1)


def caller(name, **fields):
    """Who has a key of this name. fields: of ApiKey."""
    key = ApiKey(name=name, sha256=[hash_of(name)], **fields)
    return Caller(key, KeyUse(key))


def middleware(app, settings=None, admission=None, log=None, **options):
    """The middleware around `app`, of a dispatcher that runs nothing. options: further arguments of SkimMiddleware."""
    admission, log = admission or Admission(LocalMeter()), log or RequestLog()
    parts = {"admission": admission, "log": log, "settings": settings or RouterConfig()}
    dispatcher = SimpleNamespace(defaults=DEFAULTS, decode_defaults=SpeculationOptions(), **parts)
    return SkimMiddleware(app, dispatcher, **options)


class Call:
    """One request through the middleware. `sent`: the messages that reached the client; `times`: when, in seconds."""

    def __init__(self, app, chunks=(b"{}",), method="POST", headers=(), scope_type="http", keep_alive_s=0.0):
        self.sent, self.times = [], []
        self._incoming = [
            {"type": "http.request", "body": chunk, "more_body": i < len(chunks) - 1} for i, chunk in enumerate(chunks)
        ]
        self._scope = {"type": scope_type, "method": method, "path": "/", "headers": list(headers)}
        self._app = middleware(app, RouterConfig(keep_alive_s=keep_alive_s), log=(log := RequestLog()))
        self.report = log.report

    async def run(self):
        async def receive():
            return self._incoming.pop(0) if self._incoming else {"type": "http.disconnect"}

        async def send(message):
            self.sent.append(message)
            self.times.append(asyncio.get_running_loop().time())

        await self._app(self._scope, receive, send)
        return self

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent[1:])


class Streaming:
    """An app that starts its response before the engine has answered, as vLLM does for streams.

    steps: bytes are sent, a number of seconds passes, a function gets the request's context.
    """

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, *steps):
        self.steps = steps

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self.content_type)]})
        for step in self.steps:
            context = CURRENT.get()
            if callable(step):
                step(context)
            elif isinstance(step, float):
                await asyncio.sleep(step)
            else:
                await send({"type": "http.response.body", "body": step, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def decided(mode):
    def step(context):
        outcome = context.prompts[0] if context.prompts else context.begin(A_HUNDRED)
        outcome.mode, outcome.reason = mode, "requested"

    return step


def begun(context):
    """A prompt of a hundred tokens, not yet admitted. It arrived when virtual time began."""
    context.request_id, context.request = "r-0", replace(context.request, arrived=0.0)
    context.begin(A_HUNDRED)


def admitted(context):
    for outcome in context.prompts:
        outcome.admit()


def answering(context):
    context.answering = True


def failing(status):
    def step(context):
        context.error = HttpError(status, "SomeError", "why", None)

    return step
