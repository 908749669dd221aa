"""Traces: how a file is read, what is taken from it, and the prompts that its ids become."""

import json

import numpy as np
import pytest

from benchmarks.replay.mooncake import TRACE_BLOCK, TracedRequest, conversations, read_trace
from benchmarks.replay.trace import CONVERSATION, sample, scaled, shared_tokens, token_ids, within
from skim_common.errors import SkimError

IDS = range(8, 900)


def request(at: float, *blocks: int, short: int = 0) -> TracedRequest:
    return TracedRequest(at, len(blocks) * TRACE_BLOCK - short, 100, blocks)


# Two conversations with one system prompt (block 0), and a prompt that is too short to share more.
TRACE = [
    request(0, 0, 1, 2),
    request(5, 0, 7),
    request(10, 0, 1, 2, 3, short=100),
    request(20, 0),
    request(30, 0, 7, 8),
]


@pytest.fixture(scope="module")
def bundled():
    return read_trace(CONVERSATION)


def test_the_bundled_cut_is_what_its_readme_says(bundled):
    told = (CONVERSATION.parent / "README.md").read_text()
    share = sum(shared_tokens(bundled)) / sum(r.prompt_tokens for r in bundled)
    assert f"{share:.1%}".replace("%", " %") in told
    assert f"They are {len(bundled)} requests in {len(conversations(bundled))} conversations" in " ".join(told.split())
    assert (CONVERSATION.parent / "LICENSE").read_text().strip().startswith("Apache License")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("nonsense", "line 2: a trace has JSON lines"),
        ('{"timestamp": 0, "input_length": 3}', "line 2: a trace has JSON lines"),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}',
            "line 2: hash_ids must have one",
        ),
    ],
)
def test_another_format_is_one_sentence(tmp_path, line, wrong):
    good = json.dumps({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0]})
    (tmp_path / "t.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(SkimError, match=f"t.jsonl, {wrong}"):
        read_trace(tmp_path / "t.jsonl")
    with pytest.raises(SkimError, match=r"cannot read the trace no\.jsonl"):
        read_trace(tmp_path / "no.jsonl")


def test_conversations_share_more_than_their_first_block():
    assert [[r.at_s for r in group] for group in conversations(TRACE)] == [[0, 10], [5, 30], [20]]


def test_a_sample_has_whole_conversations_in_order_of_time():
    for seed in range(5):
        chosen = sample(TRACE, 2, 10**6, seed)
        assert [r.at_s for r in chosen] == sorted(r.at_s for r in chosen)
        assert all({r.at_s for r in group} <= {r.at_s for r in chosen} for group in conversations(chosen))
    assert sample(TRACE, 100, 10**6, 0) == TRACE
    assert {r.at_s for r in sample(TRACE, 100, 3 * TRACE_BLOCK, 0)} == {5, 20, 30}, "the longest prompt leaves with all"
    with pytest.raises(SkimError, match="no conversation"):
        sample(TRACE, 1, 10, 0)


def test_times_are_scaled():
    assert [r.at_s for r in within(TRACE[1:], 10)] == [0, 2, 6, 10]
    assert [r.at_s for r in within(TRACE[:1], 10)] == [0]


def test_an_unlimited_cache_holds_the_common_beginning_but_not_the_last_token():
    assert shared_tokens(TRACE) == [0, 512, 1536, 511, 1024]


def test_prompts_share_exactly_the_blocks_of_the_trace():
    first, other, later, *_ = (token_ids(r, 16, IDS) for r in TRACE)
    assert [ids.size for ids in (first, other, later)] == [48, 32, scaled(TRACE[2].prompt_tokens, 16)]
    assert np.array_equal(first, later[:48])
    assert np.array_equal(first[:16], other[:16])
    assert not np.array_equal(first[16:32], other[16:32])
    assert first.min() >= 8
    assert first.max() < 900
