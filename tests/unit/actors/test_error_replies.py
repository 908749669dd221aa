"""What a client reads when an engine fails: the pool's name and what to do, no path, no host and no trace."""

import asyncio
import json
import logging
from http import HTTPStatus
from types import SimpleNamespace

import numpy as np
import pytest
from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from actors.pool_actor import reply_to_failure
from kv_transfer.codec import decode
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt, Selection
from kv_transfer.options import SelectionOptions
from router.options.errors import HttpError
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.models.info import inspect_model
from speculator_service.engine import ScoreRequest
from speculator_service.vllm_backend.engine import VllmSpeculator
from target_service.vllm_backend.engine import VllmTarget
from tests.unit.router.conftest import MODELS

IDS = np.arange(3, 40, dtype=np.int32)
SECRET = 'Traceback: File "/srv/models/secret/worker.py", host 10.1.2.3'


class FailingEngine:
    """In the place of vLLM's AsyncLLM: each call raises `error`, or ends without an output if it is None."""

    def __init__(self, error, errored=False):
        self.error, self.errored = error, errored
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(), cache_config=SimpleNamespace(block_size=32), speculative_config=None
        )

    async def generate(self, *args, **kwargs):
        if self.error is not None:
            raise self.error
        return
        yield

    async def check_health(self):
        raise EngineDeadError from RuntimeError(SECRET)


def generate_error(cause):
    error = EngineGenerateError()
    error.__cause__ = cause
    return error


def engine_of(cls, folder, **attributes):
    """An engine without its model. attributes: what the tested calls read."""
    engine = object.__new__(cls)
    engine.info = inspect_model(str(MODELS / folder), engine="test")
    for name, value in attributes.items():
        setattr(engine, name, value)
    return engine


def vllm_target(error):
    none = SimpleNamespace(method="none")
    return engine_of(VllmTarget, "target", _engine=FailingEngine(error), decode=none, _kv_role=None)


def vllm_speculator(error, closed=False, errored=False):
    vocabulary = 512
    engine = FailingEngine(error, errored)
    return engine_of(
        VllmSpeculator, "speculator", _engine=engine, _closed=closed, _vocab_size=vocabulary, eos_token_ids=frozenset()
    )


async def answer(target):
    request = GenerateRequest("r", KeptPrompt.dense(IDS), {"max_tokens": 2})
    async for _ in target.generate(request):
        pass


async def score(speculator):
    await speculator.score(ScoreRequest("r", IDS, SelectionOptions()))


CAUSES = [
    GracefulHTTPError(SECRET, HTTPStatus.SERVICE_UNAVAILABLE),
    generate_error(RuntimeError(SECRET)),
    EngineDeadError(),
]

FAILURES = {
    **{f"target {type(e).__name__}": (lambda e=e: answer(vllm_target(e)), "target") for e in CAUSES},
    **{f"speculator {type(e).__name__}": (lambda e=e: score(vllm_speculator(e)), "speculator") for e in CAUSES[1:]},
    "target health": (lambda: vllm_target(None).check_health(), "target"),
    "speculator silent": (lambda: score(vllm_speculator(None)), "speculator"),
    "speculator closed": (lambda: score(vllm_speculator(None, closed=True)), "speculator"),
    "speculator dead": (lambda: score(vllm_speculator(None, errored=True)), "speculator"),
    "unexpected": (lambda: _raise(OSError(SECRET)), "target"),
}


async def _raise(error):
    raise error


@pytest.mark.parametrize("failure", FAILURES)
def test_an_engines_failure_shows_the_client_no_path_host_or_trace(failure):
    run, pool = FAILURES[failure]
    with pytest.raises(Exception) as raised:  # noqa: PT011  of every kind
        asyncio.run(run())
    with pytest.raises(SkimError) as received:
        decode(reply_to_failure(raised.value, pool), GenerateOutput if pool == "target" else Selection)
    error = HttpError.of(received.value)
    body = json.dumps(error.body())
    assert error.status in (500, 503)
    assert pool in error.message
    assert "/" not in body
    assert str(MODELS) not in body
    assert "10.1.2.3" not in body
    assert "Traceback" not in body


def test_the_log_keeps_the_folder_and_the_cause(caplog):
    with caplog.at_level(logging.ERROR), pytest.raises(SkimError) as raised:
        asyncio.run(answer(vllm_target(generate_error(RuntimeError(SECRET)))))
    reply_to_failure(raised.value, "target")
    assert str(MODELS / "target") in caplog.text
    assert SECRET in caplog.text


def test_a_clients_mistake_is_not_logged_as_a_failure(caplog):
    reply_to_failure(InvalidRequestError("too long"), "target")
    assert caplog.records == []
