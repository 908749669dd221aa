"""Forecasts of reads in windows, against a speculator that reads windows in virtual time."""

import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.harness.virtual_time import run
from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.windows import WindowPlan
from router.decision.forecast import Forecaster
from router.decision.sizes import WindowReads
from router.options.request import PrefillOptions
from skim_common.models.costs import ReadCost
from speculator_service.service import SpeculatorService
from tests.unit.actors.mock_actors import MODELS
from tests.unit.router.decision.test_forecast_accuracy import right
from tests.unit.speculator_service.reading.asking import OPTIONS, asking, plan_of

SPECULATOR = str(MODELS / "speculator")
READ = PrefillOptions(
    keep_rate=0.2, **OPTIONS.model_dump(include={"scoring", "read", "read_again", "window_tokens", "protect_last"})
)
QUADRATIC = ReadCost(1.0, 0.0005)
"""A speculator of which a whole prompt of 16k tokens costs five times as much as its tokens without attention."""


def looked(forecaster, request, windows=True):
    found = WindowReads.of(READ, plan_of(request), request.token_ids.size) if windows else None
    return forecaster.look(request.token_ids, None, READ, request.layout, windows=found)


def reads(around, window, size, start=0, head=0):
    """Of a prompt of `size` tokens, whose text begins at `start`."""
    return WindowReads(WindowPlan(((start, size),), window, around), size, head)


def forecasts(model, *, windows=True, sizes=(1000, 16_000), turns=False):
    """Forecast by real time of the prompts after the first ten, of mixed lengths.

    windows: whether the router knows that they are read in windows. turns: every second prompt asks about the text of
    the one before it.
    """

    async def each():
        times = {"latency_ms": 0.3, "ms_per_token": 0.1, "one_at_a_time": True}
        engine = MockSpeculator(model, head_profile=True, cache_tokens=10**6, block_size=4, **times)
        service, info = SpeculatorService(engine), replace(engine.info, read_cost=QUADRATIC)
        forecaster, choose, ratios, request = Forecaster(), random.Random(1), [], asking(1000)
        for step in range(100):
            forecaster.know("speculator", info, 1)
            if turns and step % 2:
                ids = request.token_ids.copy()
                ids[slice(*request.layout.questions[-1])] = step
                request = replace(request, request_id=f"r{step}", token_ids=ids)
            else:
                size = round(sizes[0] * (sizes[1] / sizes[0]) ** choose.random())
                request = replace(asking(size, seed=step), request_id=f"r{step}")
            forecast = looked(forecaster, request, windows)
            expected = forecaster.work(forecast, READ, 0, selects=True).speculator_ms
            selection = await service.select(request)
            forecaster.selected(forecast, selection, READ)
            ratios.append(expected / sum(selection.timings.values()))
        return np.array(ratios[10:])

    return run(each())


def test_forecasts_are_right_for_mixed_lengths():
    assert right(forecasts(SPECULATOR)) >= 0.9


def test_forecasts_are_right_for_later_questions_about_a_text():
    asked = {"turns": True, "sizes": (4000, 16_000)}
    assert right(forecasts(SPECULATOR, **asked)) >= 0.85
    # Negative control: on the line of whole prompts a later question costs its own tokens only.
    assert right(forecasts(SPECULATOR, windows=False, **asked)) < 0.7


def test_protected_tokens_are_in_no_window():
    forecaster, request = Forecaster(lambda: 0.0), asking()
    for size in (1000, 4000, 16_000):
        forecaster.windows.measure(reads(25, 512, size).read(0), 0.1 * size, 0.0)
    size = int(request.token_ids.size)
    forecast = forecaster.look(request.token_ids, None, READ, windows=reads(25, 512, size, start=8000))
    assert forecaster.work(forecast, READ, 0, selects=True).speculator_ms == pytest.approx(840, rel=0.05)


def test_of_the_windows_of_a_prompt_one_reads_their_head():
    """A template's default system prompt stands in each frame, and in the prefix cache after the first window."""
    around, size = 600, 12_000
    short, long = reads(around, 1000, size), reads(around, 1000, size, head=512)
    windows = long.count()
    assert windows == 12
    assert short.tokens(short.known(0)) == size + windows * around
    assert long.tokens(long.known(0)) == size + windows * around - (windows - 1) * 512
