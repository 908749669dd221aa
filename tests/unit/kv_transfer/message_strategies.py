"""Hypothesis strategies for every message that crosses the wire, and equality between two messages."""

import dataclasses
import itertools
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kv_transfer.drafts import Drafted, DraftReply, DraftRequest, DraftRow
from kv_transfer.layout import Frame, TextLayout
from kv_transfer.messages import (
    Completion,
    Envelope,
    GenerateOutput,
    GenerateRequest,
    KeptPrompt,
    Selection,
    SelectRequest,
    SessionHandle,
    TokenLogprob,
)
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim_common.models.costs import ReadCost
from skim_common.models.info import ModelInfo

ids = st.integers(0, 2**31 - 1)
names = st.text(max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
timings = st.dictionaries(names, finite, max_size=4)
traces = st.none() | st.dictionaries(names, names, max_size=3)
envelopes = st.builds(Envelope, traces, names, st.none() | finite)
builtins = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | names | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
parameters = st.dictionaries(names, builtins, max_size=4)
sessions = st.builds(SessionHandle, names, names)
logprobs = st.lists(st.builds(TokenLogprob, ids, st.floats(max_value=0, allow_nan=False), st.none() | ids), max_size=3)


def id_arrays(min_size: int = 0) -> st.SearchStrategy[Any]:
    return arrays(np.int32, st.integers(min_size, 40), elements=ids)


pairs = arrays(np.int32, st.tuples(st.integers(0, 5), st.just(2)), elements=ids)
frames = st.builds(Frame, id_arrays(), id_arrays(), id_arrays())


@st.composite
def _segments_in_any_order(draw: st.DrawFn, kept: list[int]) -> list[int]:
    cuts = sorted(draw(st.sets(st.integers(0, len(kept)), max_size=6)) | {0, len(kept)})
    parts = draw(st.permutations([kept[start:end] for start, end in itertools.pairwise(cuts)]))
    return list(itertools.chain(*parts))


@st.composite
def kept_prompts(draw: st.DrawFn) -> KeptPrompt:
    context_length = draw(st.integers(1, 400))
    kept = draw(st.sets(st.integers(0, context_length - 1), min_size=1) | st.just(set(range(context_length))))
    ascending = st.just(sorted(kept))
    positions = np.array(draw(ascending | _segments_in_any_order(sorted(kept))), np.int32)
    token_ids = draw(arrays(np.int32, positions.size, elements=ids))
    return KeptPrompt(token_ids, positions, context_length, draw(id_arrays()), draw(st.none() | sessions))


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    kept = draw(kept_prompts())
    scores = arrays(np.float32, kept.context_length, elements=st.floats(0, 1, width=32))
    chunks = arrays(np.float32, st.integers(1, kept.context_length), elements=st.floats(0, 1, width=32))
    counts = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    return Selection(
        kept, draw(st.floats(0, 1)), draw(st.none() | scores), draw(timings), *counts, draw(st.none() | chunks)
    )


options = st.builds(
    SelectionOptions,
    keep_rate=st.just("auto") | st.floats(0.01, 1),
    min_keep=st.floats(0.01, 0.5),
    coverage=st.none() | st.floats(0.01, 1),
    look_ahead=st.integers(0, 64),
    layers=st.sampled_from(["all", "last_half", "last4", "last1"]),
    granularity=st.sampled_from(["text", "chunk", "token"]),
)


@st.composite
def select_requests(draw):
    token_ids = draw(id_arrays())
    regions = draw(st.integers(0, 3))
    layout = TextLayout(
        draw(pairs),
        np.arange(2 * regions, dtype=np.int32).reshape(-1, 2),
        draw(arrays(np.float32, regions, elements=st.floats(0.125, 1, width=32))),
        np.array(sorted(draw(st.sets(st.integers(0, 10**6), max_size=9))), np.int32),
        np.array(draw(st.lists(st.integers(0, 10**6), max_size=9)), np.int32),
        np.array(draw(st.lists(st.integers(0, 10**6), max_size=9)), np.int32),
        draw(arrays(np.float32, st.integers(0, 9), elements=st.floats(0, 9, width=32))),
        np.array(draw(st.lists(st.integers(0, 10**6), max_size=9)), np.int32),
        draw(pairs),
        draw(pairs),
        draw(st.none() | frames),
        draw(st.floats(0, 1)),
    )
    salt = draw(st.none() | names)
    return SelectRequest(
        draw(names), token_ids, draw(options), layout, draw(st.booleans()), salt, envelope=draw(envelopes)
    )


decode_options = st.builds(
    DecodeOptions,
    method=st.sampled_from(["remote", "ngram", "none"]),
    max_draft_tokens=st.integers(1, 16),
    adaptive=st.booleans(),
    draft_context=st.sampled_from(["full", "kept"]),
)
generate_requests = st.builds(
    GenerateRequest,
    names,
    kept_prompts(),
    parameters,
    st.integers(-9, 9),
    st.none() | names,
    parameters,
    decode=decode_options,
    envelope=envelopes,
)
completions = st.builds(
    Completion,
    st.integers(0, 9),
    names,
    id_arrays(),
    st.none() | st.lists(logprobs, max_size=3),
    st.none() | finite,
    st.none() | names,
    st.none() | ids | names,
)
generate_outputs = st.builds(
    GenerateOutput,
    st.lists(completions, max_size=3),
    st.booleans(),
    st.integers(0, 9),
    st.none() | st.lists(st.none() | logprobs, max_size=3),
    timings,
)
read_costs = st.builds(ReadCost, st.floats(1, 1e15), st.floats(0, 1e12), st.floats(0, 1e12), ids)
model_infos = st.builds(ModelInfo, names, names, ids, names, ids, ids, names, read_costs, ids)


small_id_arrays = arrays(np.int32, st.integers(0, 6), elements=ids)
draft_rows = st.builds(DraftRow, names, ids, small_id_arrays, st.integers(0, 16), st.floats(0, 10), st.integers(0, 512))


def by_session(rows: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Rows with distinct sessions."""
    return st.lists(rows, max_size=5, unique_by=lambda row: row.session)


draft_requests = st.builds(
    DraftRequest,
    by_session(draft_rows),
    st.lists(names, max_size=3),
)


@st.composite
def drafted(draw: st.DrawFn) -> Drafted:
    """k drafts, one-hot or each with a q over m tokens that include the draft."""
    tokens = draw(small_id_arrays)
    width = draw(st.integers(0, 6))
    q_ids, q_probs = [], []
    for token in tokens if width else []:
        others = draw(st.sets(ids.filter(lambda i, token=token: i != token), min_size=width - 1, max_size=width - 1))
        row = draw(st.permutations([token, *others]))
        weights = [draw(st.integers(int(i == token), 9)) for i in row]
        q_ids += row
        q_probs += [weight / sum(weights) for weight in weights]
    q = (np.array(q_ids, np.int32), np.array(q_probs, np.float32))
    return Drafted(tokens, *q)


draft_replies = st.builds(DraftReply, st.dictionaries(names, drafted(), max_size=5))

messages = st.one_of(
    draft_requests,
    draft_replies,
    kept_prompts(),
    selections(),
    select_requests(),
    generate_requests,
    generate_outputs,
    model_infos,
    sessions,
    options,
)


def same(left: Any, right: Any) -> bool:
    """Deep equality, including types, and dtype and shape of arrays."""
    if type(left) is not type(right):
        return False
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
