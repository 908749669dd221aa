"""What a read computes is bounded by the prompt's length, in every shape, and the router expects as many windows."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_transfer.arrays import spans_of
from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from kv_transfer.windows import MOST_COMPUTED, QUESTION_SHARE
from router.decision.sizes import WindowReads
from router.options.request import PrefillOptions
from speculator_service.engine import Scores
from speculator_service.reading import Reading
from speculator_service.service import scores_of
from tests.unit.kv_transfer.layouts import layout_of
from tests.unit.speculator_service.reading.asking import plan_of

LAST = 4


class Counting:
    """An engine with a head profile that counts what it is asked to compute."""

    def __init__(self):
        self.info = SimpleNamespace(path="model", has_head_profile=True, max_model_len=2**20, max_position=2**20)
        self.prompts = []

    async def score(self, request):
        self.prompts.append(int(request.token_ids.size))
        return Scores(np.zeros(request.token_ids.size, np.float32), [])


def ones(size):
    return np.ones(size, np.int32)


def request_of(texts, *, window, question=20, frame=(12, 2, 6), units=16):
    """A prompt that begins with its question. texts: (tokens that are protected, tokens after them that are not)."""
    sizes = np.array([(1, 0), (question, 0), *texts, (LAST, 0)])
    starts = np.cumsum(sizes.sum(1)) - sizes.sum(1)
    protected = np.stack([starts, starts + sizes[:, 0]], 1)[sizes[:, 0] > 0].astype(np.int32)
    size = int(sizes.sum())
    cuts = np.unique(np.concatenate([np.arange(0, size, units), starts, protected[:, 1]]))
    options = SelectionOptions(
        scoring="heads", read="windows", read_again="off", window_tokens=window, protect_last=LAST
    )
    ids = np.random.default_rng(size).integers(0, 500, size).astype(np.int32)
    layout = layout_of(protected, question=(1, 1 + question), units=cuts[cuts < size], frame=Frame(*map(ones, frame)))
    return SelectRequest("r", ids, options, layout)


async def computed(request):
    """The prompts that the engine is asked to compute, in tokens."""
    engine = Counting()
    await scores_of(engine, Reading.of(request, engine.info))
    return engine.prompts


def around(request):
    frame, (start, end) = request.layout.frame, request.layout.questions[0].tolist()
    asked = min(end - start, request.options.window_tokens // QUESTION_SHARE)
    return asked + frame.head.size + frame.joint.size + frame.tail.size


def reads(request):
    """What the router expects."""
    return WindowReads.of(
        PrefillOptions(read="windows", read_again="off", scoring="heads"), plan_of(request), request.token_ids.size
    )


SIZES = st.one_of(st.integers(1, 40), st.integers(90, 140), st.integers(1, 1500))


@settings(max_examples=400, deadline=None)
@given(
    texts=st.lists(st.tuples(st.one_of(st.integers(1, 4), SIZES), SIZES), min_size=1, max_size=30),
    repeated=st.sampled_from([1, 1, 3, 20]),
    window=st.sampled_from([128, 130, 256, 1024, 16384]),
    question=SIZES,
    frame=st.tuples(st.integers(0, 120), st.integers(0, 4), st.integers(0, 40)),
    units=st.sampled_from([1, 8, 40, 96]),
)
async def test_the_work_is_bounded_by_the_length_in_every_shape(texts, repeated, window, question, frame, units):
    request = request_of(texts * repeated, window=window, question=question, frame=frame, units=units)
    prompts = await computed(request)
    assert sum(prompts) <= MOST_COMPUTED * request.token_ids.size + around(request)
    plan = plan_of(request)
    if plan is None:
        assert prompts == [request.token_ids.size]
    else:
        assert len(prompts) <= plan.most_windows
        expected = reads(request)
        if all(end - start <= window for start, end in plan.parts):
            assert expected.count() == pytest.approx(len(prompts))
            assert expected.tokens(0) == pytest.approx(sum(prompts))


SHAPES = {
    "spans of a client": request_of([(1, 3)] * 4096, window=1024, question=30),
    "results of tools": request_of([(12, 100)] * 300, window=1024, question=60),
    "short messages": request_of([(5, 20)] * 100, window=1024),
    "small windows": request_of([(1, 3)] * 1000, window=128),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_many_short_texts_share_windows_and_the_router_knows_how_many(shape):
    request = SHAPES[shape]
    prompts, size = await computed(request), int(request.token_ids.size)
    assert len(prompts) > 1
    assert sum(prompts) <= MOST_COMPUTED * size
    expected = reads(request)
    assert (expected.count(), expected.tokens(0)) == pytest.approx((len(prompts), sum(prompts)))
    # Control: a window for each text would compute more.
    texts = request.droppable
    assert texts.sum() + len(spans_of(texts)) * around(request) > MOST_COMPUTED * size


@pytest.mark.parametrize("tokens", [1100, 3000, 16_384])
async def test_the_router_knows_about_how_many_windows_a_long_text_has(tokens):
    ratios = []
    for size in range(tokens, tokens + 8):
        request = request_of([(5, size)], window=1024, units=12)
        expected = reads(request).count()
        ratios.append(expected / len(await computed(request)))
    assert np.mean(ratios) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("frame", [(600, 2, 6), (12, 2, 600)])
async def test_a_prompt_whose_windows_would_be_mostly_frame_is_read_as_a_whole(frame):
    request = request_of([(5, 3000)] * 4, window=1024, frame=frame)
    assert await computed(request) == [request.token_ids.size]
    small = request_of([(5, 3000)] * 4, window=1024)
    assert len(await computed(small)) > 4
