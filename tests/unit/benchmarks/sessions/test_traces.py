"""Sessions from traces in kv-cache-tester's format, and drawn ones."""

import json

import numpy as np
import pytest

from benchmarks.sessions.traces import EDITED, NEW, SPEECH_GAP, TOOL_GAP, Session, Turn, drawn, read
from skim_common.errors import SkimError

LONGEST = 128_000


def request(size, ids, **fields):
    return {"type": "n", "in": size, "out": 5, "hash_ids": ids, "input_types": ["tool_result"], **fields}


def trace(*requests, **fields):
    return {"tool_tokens": 60, "system_tokens": 40, "block_size": 64, "requests": list(requests), **fields}


@pytest.fixture
def folder(tmp_path):
    def write(*traces):
        for number, content in enumerate(traces):
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"trace_{number}.json").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def test_a_prompt_that_goes_on_shares_all_of_the_earlier_one_also_its_last_block(folder):
    found = read(
        folder(
            trace(
                request(200, [1, 2, 3], input_types=["text"], think_time=0.0),
                request(300, [1, 2, 3, 4], out=7, think_time=2.5),
            )
        ),
        LONGEST,
    )
    assert found == [Session(100, (Turn(0.0, 0, 200, 5, True), Turn(2.5, 200, 100, 7, False)))]


def test_an_edited_history_shares_the_blocks_before_the_edit(folder):
    (found,) = read(folder(trace(request(200, [1, 2, 3]), request(330, [1, 9, 10, 11, 12]))), LONGEST)
    assert (found.turns[1].shared, found.turns[1].new) == (64, 266)


def test_a_shortened_history_shares_less_than_its_prompt(folder):
    (found,) = read(folder(trace(request(330, [1, 2, 3, 4, 5]), request(129, [1, 2]))), LONGEST)
    assert (found.turns[1].shared, found.turns[1].new) == (128, 1)


def test_sub_agents_are_left_out_and_a_session_ends_before_its_first_long_prompt(folder):
    agent = {"type": "subagent", "t": 1.0, "requests": []}
    long = request(500, [1, 2, 3, 4, 5, 6, 7])
    (found,) = read(folder(trace(request(70, [1]), agent, request(140, [1, 2]), long, request(90, [1]))), 499)
    assert [turn.size for turn in found.turns] == [70, 140]


@pytest.mark.parametrize(
    "content", ["{", "[]", json.dumps({"requests": []}), json.dumps(trace({"type": "n", "in": 5}))]
)
def test_a_file_in_another_format_is_an_error_that_names_it(folder, content):
    with pytest.raises(SkimError, match=r"trace_0\.json: a trace is a JSON object"):
        read(folder(content), LONGEST)


def test_a_folder_without_a_session_is_an_error(folder):
    with pytest.raises(SkimError, match="has a session of two turns of at most 100 tokens"):
        read(folder(trace(request(200, [1, 2, 3]), request(300, [1, 2, 3, 4]))), 100)


def test_drawn_sessions_have_the_quantiles_of_the_traces():
    sessions = drawn(300, LONGEST, seed=1)
    later = [turn for session in sessions for turn in session.turns[1:]]
    before = [turn for session in sessions for turn in session.turns[:-1]]
    edited = [turn.shared != earlier.size for turn, earlier in zip(later, before, strict=True)]
    assert np.mean(edited) == pytest.approx(EDITED, abs=0.008)
    new = [turn.new for turn, edit in zip(later, edited, strict=True) if not edit]
    assert np.median(new) == pytest.approx(NEW[0.5], rel=0.05)
    assert np.quantile(new, 0.95) == pytest.approx(NEW[0.95], rel=0.15)
    for quantiles, speech in ((SPEECH_GAP, True), (TOOL_GAP, False)):
        gaps = [turn.gap_s for turn in later if turn.speech == speech]
        assert np.median(gaps) == pytest.approx(quantiles[0.5], rel=0.15)
    assert max(turn.size for turn in later) <= LONGEST


def test_drawn_sessions_follow_from_their_seed():
    assert drawn(5, LONGEST, seed=2) == drawn(5, LONGEST, seed=2) != drawn(5, LONGEST, seed=3)
