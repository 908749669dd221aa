"""The deployment classes with mock engines, and encoded requests for them."""

from pathlib import Path

import numpy as np

from actors.pool_actor import PoolSettings
from actors.speculator import SpeculatorActor
from actors.target import TargetActor
from kv_transfer.codec import encode
from kv_transfer.messages import (
    GenerateRequest,
    KeptPrompt,
    SelectRequest,
)
from kv_transfer.options import SelectionOptions

MODELS = Path(__file__).parents[3] / "demo_models"
IDS = np.arange(10, 410, dtype=np.int32)


def mock_settings(folder, options=None):
    """The settings of a replica of the demo model `folder`, with a mock engine."""
    return PoolSettings(engine="mock", model=str(MODELS / folder), options=options or {})


async def replica(actor, folder, options, *more):
    """Create the actor as Serve does: its `__init__` is a coroutine."""
    made = actor.__new__(actor)
    await made.__init__(mock_settings(folder, options), *more)
    return made


async def speculator(**options):
    return await replica(SpeculatorActor, "speculator", options)


async def target(**options):
    return await replica(TargetActor, "target", options)


def select_request(ids=IDS):
    return encode(SelectRequest("r", ids, SelectionOptions(keep_rate=0.25)))


def generate_request(**sampling):
    return encode(GenerateRequest("r", KeptPrompt.dense(IDS), {"max_tokens": 3, **sampling}))


async def replies(actor, payload):
    return [reply async for reply in actor.generate(payload)]
