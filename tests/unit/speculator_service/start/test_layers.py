"""Whether a replica leaves layers out for windows: by what it measures at its start, on engines told to be slow."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from speculator_service.engine import Scores
from speculator_service.start.layers import ROUNDS, check_layers
from tests.unit.conftest import MODELS

MODEL = str(MODELS / "speculator")


class Compiled(MockSpeculator):
    """lower, every: milliseconds without the upper layers and with all. first: of the first read of each kind.

    wrong: its scores without the upper layers are of other tokens.
    """

    def __init__(self, lower, every, *, graph=512, step=8192, first=500.0, wrong=False, **options):
        super().__init__(MODEL, **{"head_profile": True, **options})
        self.skips_layers, self.graph_tokens, self.step_tokens = True, graph, step
        self._ms, self._first, self._wrong, self.asked = {True: lower, False: every}, first, wrong, []

    async def score(self, request):
        scores = await super().score(request)
        first = self.skips_layers not in [skips for skips, _ in self.asked]
        self.asked.append((self.skips_layers, request))
        importance = scores.importance.flip(0) if self._wrong and self.skips_layers else scores.importance
        return Scores(importance, [], {"speculate": self._first if first else self._ms[self.skips_layers]})


@pytest.mark.parametrize(("lower", "every", "skips"), [(8.0, 10.0, True), (10.0, 10.0, True), (12.0, 10.0, False)])
async def test_the_upper_layers_are_left_out_unless_that_is_slower(caplog, lower, every, skips):
    engine = Compiled(lower, every)
    await check_layers(engine, MODEL)
    assert engine.skips_layers == skips
    said = f"reads windows with all layers: for one of 1024 tokens, it takes {lower:.1f} ms without"
    assert (said in caplog.text) == (not skips)
    assert len(caplog.records) == (not skips)


@pytest.mark.parametrize(("graph", "tokens"), [(512, 1024), (0, 256), (1000, 2000)])
async def test_the_window_is_longer_than_the_largest_graph_and_in_no_cache(graph, tokens):
    engine = Compiled(8.0, 10.0, graph=graph, cache_tokens=100_000, block_size=4)
    await check_layers(engine, MODEL)
    assert [skips for skips, _ in engine.asked] == [False, True] * (1 + ROUNDS)
    requests = [request for _, request in engine.asked]
    assert {request.token_ids.size for request in requests} == {tokens}
    assert all(request.window and request.questions == ((tokens - 16, tokens),) for request in requests)
    assert len({request.cache_salt for request in requests}) == len(requests)
    assert len({request.token_ids.tobytes() for request in requests}) == 1


async def test_the_first_reads_do_not_count():
    """A first read compiles and allocates."""
    engine = Compiled(8.0, 10.0, first=1.0)
    await check_layers(engine, MODEL)
    assert engine.skips_layers
    engine = Compiled(12.0, 10.0, first=1.0)
    await check_layers(engine, MODEL)
    assert not engine.skips_layers


async def test_other_scores_without_the_upper_layers(caplog):
    engine = Compiled(8.0, 10.0, wrong=True)
    await check_layers(engine, MODEL)
    assert not engine.skips_layers
    assert "its scores differ without the layers above the deepest head" in caplog.text


@pytest.mark.parametrize("limits", [{"graph": 8192}, {"max_model_len": 512}, {"head_profile": False}])
async def test_nothing_is_read_where_no_window_leaves_layers_out(limits):
    engine = Compiled(12.0, 10.0, **limits)
    await check_layers(engine, MODEL)
    assert (engine.asked, engine.skips_layers) == ([], True)


async def test_an_engine_without_layers_is_left_alone():
    engine = MockSpeculator(MODEL, head_profile=True)
    await check_layers(engine, MODEL)
    assert engine.started == 0


async def test_scores_that_are_no_numbers_are_not_used(caplog):
    engine = Compiled(8.0, 10.0)
    score = engine.score

    async def broken(request):
        scores = await score(request)
        return replace(scores, importance=scores.importance * np.nan) if engine.skips_layers else scores

    engine.score = broken
    await check_layers(engine, MODEL)
    assert not engine.skips_layers
