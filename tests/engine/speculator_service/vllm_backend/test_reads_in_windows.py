"""A read in windows on the engine: each window scores as the oracle's prompt of its own, and is cached wherever it
stands."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from kv_transfer.spans import spans_of
from kv_transfer.windows import plan_of
from skim_common.errors import SkimError
from speculator_service.engine import ScoreRequest
from speculator_service.reading.plan import windows_of
from speculator_service.reading.read import read_in_windows
from speculator_service.scoring.selection import select
from speculator_service.start import layers
from tests.engine.speculator_service.vllm_backend.by_heads import HEADS, expected, profile_of, scored_by
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE
from tests.reference.models import random_prompt
from tests.unit.kv_transfer.layouts import layout_of

# They share an engine, so also its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")

PROFILE = profile_of(((1, 0, 3.0), (1, 3, 1.0), (2, 2, 2.0)))
"""The deepest head is in the third of five layers."""
OPTIONS = SelectionOptions(scoring="heads", read="windows", window_tokens=200, protect_last=4)
HEAD, JOINT, TAIL = [3, 4, 5], [6], [7, 8, 9]
FRAME = Frame(*(np.array(part, np.int32) for part in (HEAD, JOINT, TAIL)))
ASKED = 10


@pytest.fixture(scope="module")
def rig(llama_rig) -> Iterator:
    with scored_by(llama_rig, PROFILE):
        yield llama_rig


def asking(*texts: list[int], question: list[int], name: str = "w") -> SelectRequest:
    """Texts that may be dropped, each between tokens that may not, then the question."""
    ids, droppable, units = [1, 2], [False, False], [0]
    for text in texts:
        units += range(len(ids), len(ids) + len(text), 10)
        ids += [*text, 2]
        droppable += [True] * len(text) + [False]
    first = len(ids)
    ids += [*question, *TAIL, 10]
    droppable += [False] * (len(question) + 4)
    units = np.unique([*units, *spans_of(np.array(droppable)).ravel(), first]).astype(np.int32)
    protected = spans_of(~np.array(droppable))
    asked = (first, first + len(question))
    layout = layout_of(protected, question=asked, units=units, frame=FRAME)
    return SelectRequest(name, np.array(ids, np.int32), OPTIONS, layout)


async def test_a_window_scores_as_a_prompt_of_its_own(rig):
    text, question = random_prompt(700, seed=1), random_prompt(ASKED, seed=2)
    request = asking(text, question=question)
    scores = await read_in_windows(rig.engine, request)
    windows = windows_of(request.token_ids, plan_of(request), request.layout.units)
    assert len(windows) >= 4
    wanted = torch.zeros(request.token_ids.size)
    for start, end in windows:
        prompt = [*HEAD, *request.token_ids[start:end].tolist(), *JOINT, *question, *TAIL]
        first = len(HEAD) + end - start + len(JOINT)
        mass = expected(rig, prompt, (first, first + ASKED), PROFILE)
        wanted[start:end] = mass[len(HEAD) : len(HEAD) + end - start]
    assert (scores.importance - wanted).abs().max() <= TOLERANCE
    assert 0 < scores.importance.sum() < len(windows)


async def test_a_known_document_is_cached_at_another_place_of_another_prompt(rig):
    document = random_prompt(900, seed=3)
    first = asking(document, random_prompt(300, seed=4), question=random_prompt(ASKED, seed=5), name="d1")
    await read_in_windows(rig.engine, first)
    other = asking(random_prompt(150, seed=6), document, question=random_prompt(ASKED, seed=7), name="d2")
    alone = asking(random_prompt(150, seed=8), question=random_prompt(ASKED, seed=7), name="d3")
    cached, of_other_text = [(await read_in_windows(rig.engine, asked)).cached_tokens for asked in (other, alone)]
    assert 0.9 * 900 <= cached <= 900 + 10 * len(HEAD)
    assert of_other_text <= len(HEAD)


async def test_control_another_salt_finds_nothing(rig):
    document, question = random_prompt(400, seed=8), random_prompt(ASKED, seed=9)
    await read_in_windows(rig.engine, asking(document, question=question, name="s1"))
    whole = asking(document, question=question, name="s2")
    again = replace(whole, request_id="s3", cache_salt="other")
    assert (await read_in_windows(rig.engine, again)).cached_tokens <= 4 * len(HEAD)
    assert (await read_in_windows(rig.engine, whole)).cached_tokens > 360


async def test_no_salt_of_a_client_finds_the_kv_of_windows(rig):
    """Its upper layers were never written."""
    text, question = random_prompt(150, seed=20), random_prompt(ASKED, seed=21)
    await read_in_windows(rig.engine, asking(text, question=question, name="own"))
    prompt = np.array([*HEAD, *text, *JOINT, *question, *TAIL], np.int32)
    ahead = SelectionOptions(look_ahead=4)
    for salt in (None, "", "window", "window:", "whole:", "whole:window:"):
        asked = ScoreRequest(f"whole-{salt}", prompt, ahead, cache_salt=salt)
        assert (await rig.engine.score(asked)).cached_tokens == 0
    again = ScoreRequest("again", prompt, OPTIONS, questions=((len(HEAD) + 151, len(HEAD) + 151 + ASKED),), window=True)
    assert (await rig.engine.score(again)).cached_tokens > 100


def _watch(worker):
    """From now on, `worker.ran` has the index of each layer that runs."""
    worker.ran, [loop] = set(), worker._loop._loops
    if not hasattr(worker, "watched"):
        worker.watched = [
            layer.register_forward_pre_hook(lambda *_, index=index: worker.ran.add(index))
            for index, layer in enumerate(loop.layers)
        ]


def _ran(worker):
    return sorted(worker.ran)


async def test_layers_above_the_deepest_head_do_not_run(rig):
    await rig.call(_watch)
    await read_in_windows(rig.engine, asking(random_prompt(500, seed=10), question=random_prompt(ASKED, seed=11)))
    assert await rig.call(_ran) == [[0, 1, 2]]


async def test_all_layers_run_where_another_request_needs_them(rig):
    text, question = random_prompt(230, seed=12), random_prompt(ASKED, seed=13)
    whole, ahead = random_prompt(240, seed=14), SelectionOptions(look_ahead=8)
    request = asking(text, question=question)
    read, answer = await asyncio.gather(read_in_windows(rig.engine, request), rig.score(whole, ahead))
    assert rig.compare(whole, ahead, answer) <= TOLERANCE
    await rig.call(_watch)
    alone = asking(text, question=random_prompt(ASKED, seed=15))
    again, _ = await asyncio.gather(read_in_windows(rig.engine, alone), rig.score(random_prompt(240, seed=16), HEADS))
    assert await rig.call(_ran) == [[0, 1, 2, 3, 4]]
    assert np.isfinite(torch.stack([read.importance.sum(), again.importance.sum()]).numpy()).all()


@pytest.mark.parametrize("slow", [True, False])
async def test_a_replica_leaves_no_layer_out_if_that_is_slower(rig, caplog, monkeypatch, slow):
    """The steps without the upper layers wait, or those with all of them. The random model has no real tokenizer."""

    def wait(worker, slow=slow):
        up_to = type(worker._loop).up_to

        def later(depth, tokens):
            import time

            time.sleep(0.3 if (depth is not None) == slow else 0)
            return up_to(worker._loop, depth, tokens)

        worker._loop.up_to = later

    def as_before(worker):
        del worker._loop.up_to

    prompt = SimpleNamespace(token_ids=np.array(random_prompt(200, seed=30), np.int32))
    monkeypatch.setattr(layers, "needle_prompts", lambda model: [prompt])
    monkeypatch.setattr(rig.engine, "info", replace(rig.engine.info, has_head_profile=True))
    await rig.call(wait)
    try:
        await layers.check_layers(rig.engine, "some/model")
    finally:
        await rig.call(as_before)
    try:
        await rig.call(_watch)
        name = f"after-{slow}"
        await read_in_windows(rig.engine, asking(random_prompt(99, seed=31), question=[11, 12], name=name))
        assert await rig.call(_ran) == [[0, 1, 2, 3, 4] if slow else [0, 1, 2]]
        assert (await rig.engine.stats())["runs_all_layers"] == slow
    finally:
        rig.engine.skips_layers = True
    assert ("reads windows with all layers" in caplog.text) == slow
    assert "scores differ" not in caplog.text


async def test_control_a_head_above_the_depth_has_no_scores(rig):
    def too_few(worker):
        worker._loop._loops[0].end_layer = 2

    def all_layers(worker):
        worker._loop._loops[0].end_layer = 5

    await rig.call(too_few)
    try:
        read = await read_in_windows(rig.engine, asking(random_prompt(99, seed=17), question=[11, 12], name="n"))
    finally:
        await rig.call(all_layers)
    with pytest.raises(SkimError, match="not finite"):
        select(read.importance, OPTIONS)
