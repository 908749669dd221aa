"""What reads a client's text runs beside the event loop if the text is long, and only for what is not refused."""

import asyncio
import sys
import threading

import pytest

from kv_transfer.options import DecodeOptions
from router.admission.controller import Admission
from router.dispatch import apart as module
from router.dispatch.apart import INLINE_CHARS, apart
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import SkimError
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.asgi_calls import caller
from tests.unit.router.conftest import LocalPools, until
from tests.unit.router.dispatching import prompt
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS, request_body

MAY_STAY = {
    *(
        "contents.changed",
        "contents.<lambda>",
        "contents.chars_of",
        "contents.texts_of",
        "context_edits.without_thinking",
        "context_edits.read_edits",
    ),
    *("rendered.settings_of", "rendered._is_setting", "rendered.frame_messages", "rendered.frame_of"),
    *("markers.KeepFields.check", "markers.extract_keep_fields", "markers._has_keep"),
    *(
        "rendered.RenderedPrompt.length",
        "rendered.RenderedPrompt.size",
    ),
    *("rendered.PromptSpans.protected_tokens", "protected_spans.tokens_touched_by_each"),
    "protected_spans.char_ranges",
    "rendered.RenderedPrompt.message_spans",
}
"""Functions that look at the form of messages, at numbers, or at a text that no client sends, and one search."""


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_long_text_is_not_read_on_the_event_loop(client, pools, document, path, monkeypatch):
    monkeypatch.setattr(module, "INLINE_CHARS", 1000)
    body, seen = request_body(path, document, max_tokens=2), set()
    body["speculative_prefill"] = {"enabled": "always", "keep_rate": 0.5}
    if "messages" in body:
        body["messages"][-1]["keep"] = 0.5
        body["context_management"] = {"edits": [{"type": "clear_thinking_20251015"}]}

    def note(frame, event, _):
        _, found, name = frame.f_code.co_filename.rpartition("/router/prompt/")
        if event == "call" and found:
            seen.add(f"{name.removesuffix('.py').rpartition('/')[2]}.{frame.f_code.co_qualname.partition('.<')[0]}")

    sys.setprofile(note)  # of this thread, which has the event loop
    try:
        answer = await client.post(path, json=body)
    finally:
        sys.setprofile(None)
    assert (answer.status_code, answer.headers.get("x-skim-mode")) == (200, "speculative"), answer.text
    assert seen - MAY_STAY == set()


@pytest.mark.parametrize("refused", ["too long", "full router", "no tokens left"])
async def test_nothing_is_looked_for_in_a_prompt_that_is_refused(monkeypatch, refused):
    read = []
    monkeypatch.setattr(RenderedPrompt, "spans", lambda *asked: read.append(asked))
    pools, meter = LocalPools(), LocalMeter()
    admission = Admission(meter, most=0 if refused == "full router" else None)
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), RouterConfig(), meter, admission)
    who = caller("k", prompt_tokens_per_minute=1) if refused == "no tokens left" else None
    if who is not None:
        who.use.spend(600, first=True)
    call = CallState(Request(PrefillOptions(min_prompt_tokens=256), DecodeOptions(), caller=who))
    asked = prompt([7] * (10**6 if refused == "too long" else 600), text="x " * 600)
    with pytest.raises(SkimError):
        await anext(dispatcher.run("r", asked, call))
    assert read == []


async def test_a_call_that_is_cancelled_ends_with_its_thread_and_begins_in_none():
    begun, may_end = [], threading.Event()

    def work(name):
        begun.append(name)
        may_end.wait(60)

    threads = module._THREADS._max_workers
    calls = [asyncio.create_task(apart(INLINE_CHARS + 1, work, name)) for name in range(threads + 1)]
    await until(lambda: len(begun) == threads)
    for call in calls:
        call.cancel()
    await asyncio.sleep(0.05)
    assert not any(call.done() for call in calls)
    may_end.set()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    assert begun == [*range(threads)]


async def test_a_short_text_needs_no_thread_and_an_error_comes_from_either():
    assert await apart(INLINE_CHARS, threading.get_ident) == threading.get_ident()
    assert await apart(INLINE_CHARS + 1, threading.get_ident) != threading.get_ident()
    for chars in (1, INLINE_CHARS + 1):
        with pytest.raises(ZeroDivisionError):
            await apart(chars, divmod, 1, 0)
