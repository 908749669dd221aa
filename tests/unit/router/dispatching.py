"""Runs one prompt through a dispatcher with mock engines."""

from types import SimpleNamespace

import numpy as np

from kv_transfer.options import DecodeOptions
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.prompt.rendered import RenderedPrompt
from tests.unit.actors.local_meter import LocalMeter

IDS = [7 + i % 900 for i in range(600)]
SAMPLING = {"max_tokens": 4}


def prompt(ids=IDS, *, text=None, offsets=None, chat=None, **fields):
    rendered = RenderedPrompt(np.array(ids, np.int32), text, offsets, chat)
    return Prompt(**{"rendered": rendered, "sampling": SAMPLING, "max_tokens": 4, **fields})


async def run(pools, one_prompt, timeout_s=60.0, **options):
    """The outputs, the outcome, the dispatcher and the context of one prompt."""
    defaults, decode = PrefillOptions(), SpeculationOptions()
    dispatcher = Dispatcher(
        pools,
        defaults,
        decode,
        RouterConfig(select_timeout_s=timeout_s),
        LocalMeter(),
    )
    context = CallState(
        Request(PrefillOptions(**{"enabled": "always", "min_prompt_tokens": 256, **options}), DecodeOptions())
    )
    outputs = [output async for output in dispatcher.run("r", one_prompt, context)]
    return SimpleNamespace(outputs=outputs, outcome=context.prompts[0], dispatcher=dispatcher, context=context)
