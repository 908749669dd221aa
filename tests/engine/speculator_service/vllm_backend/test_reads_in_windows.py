"""A read in windows on the engine: each window scores as the oracle's prompt of its own, and is cached wherever it
stands."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from kv_transfer.arrays import spans_of
from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from speculator_service.reading import Reading, read_in_windows, windows_of
from tests.engine.speculator_service.vllm_backend.by_heads import expected, profile_of, scored_by
from tests.engine.speculator_service.vllm_backend.conftest import TOLERANCE
from tests.reference.models import random_prompt
from tests.unit.kv_transfer.layouts import layout_of
from tests.unit.speculator_service.reading.asking import plan_of

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


async def read(rig, request):
    return await read_in_windows(rig.engine, Reading.of(request, rig.engine.info))


async def test_a_window_scores_as_a_prompt_of_its_own(rig):
    text, question = random_prompt(700, seed=1), random_prompt(ASKED, seed=2)
    request = asking(text, question=question)
    scores = await read(rig, request)
    windows = windows_of(request.token_ids, plan_of(request), request.layout.units)
    assert len(windows) >= 4
    wanted = np.zeros(request.token_ids.size, np.float32)
    for start, end in windows:
        prompt = [*HEAD, *request.token_ids[start:end].tolist(), *JOINT, *question, *TAIL]
        first = len(HEAD) + end - start + len(JOINT)
        mass = expected(rig, prompt, (first, first + ASKED), PROFILE)
        wanted[start:end] = mass[len(HEAD) : len(HEAD) + end - start]
    assert np.abs(scores.importance - wanted).max() <= TOLERANCE
    assert 0 < scores.importance.sum() < len(windows)


async def test_a_known_document_is_cached_at_another_place_of_another_prompt(rig):
    document = random_prompt(900, seed=3)
    first = asking(document, random_prompt(300, seed=4), question=random_prompt(ASKED, seed=5), name="d1")
    await read(rig, first)
    other = asking(random_prompt(150, seed=6), document, question=random_prompt(ASKED, seed=7), name="d2")
    alone = asking(random_prompt(150, seed=8), question=random_prompt(ASKED, seed=7), name="d3")
    cached, of_other_text = [(await read(rig, asked)).cached_tokens for asked in (other, alone)]
    assert 0.9 * 900 <= cached <= 900 + 10 * len(HEAD)
    assert of_other_text <= len(HEAD)


async def test_control_another_salt_finds_nothing(rig):
    document, question = random_prompt(400, seed=8), random_prompt(ASKED, seed=9)
    await read(rig, asking(document, question=question, name="s1"))
    whole = asking(document, question=question, name="s2")
    again = replace(whole, request_id="s3", cache_salt="other")
    assert (await read(rig, again)).cached_tokens <= 4 * len(HEAD)
    assert (await read(rig, whole)).cached_tokens > 320
