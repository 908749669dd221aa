"""Which positions' queries score a prompt, for each value of `score_queries`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.options import SelectionOptions
from speculator_service.scoring.score_queries import MAX_QUESTION_ROWS, ScoreQueries


def positions(prompt, question, *more, **options):
    needed = ScoreQueries.of(SelectionOptions(**options), prompt, [question, *more] if question else [])
    return list(needed.rows), list(needed.steps)


def test_the_look_ahead_begins_at_the_last_prompt_token():
    assert positions(100, (40, 50), look_ahead=3) == ([], [99, 100, 101, 102])
    assert positions(100, None, look_ahead=0) == ([], [99])


def test_the_questions_tokens_need_no_look_ahead():
    assert positions(100, (40, 50), score_queries="question") == (list(range(40, 50)), [])
    assert SelectionOptions(score_queries="question", look_ahead=8).tokens_ahead == 0
    assert SelectionOptions(score_queries="both", look_ahead=8).tokens_ahead == 8


def test_both():
    assert positions(100, (40, 50), score_queries="both", look_ahead=1) == (list(range(40, 50)), [99, 100])
    # The last prompt token counts once.
    assert positions(100, (97, 100), score_queries="both", look_ahead=1) == ([97, 98], [99, 100])
    assert positions(100, (99, 100), score_queries="both", look_ahead=0) == ([], [99])


def test_retrieval_heads_need_the_question_and_the_last_token():
    assert positions(100, (40, 50), scoring="heads", look_ahead=8) == (list(range(40, 50)), [99])
    assert positions(100, (97, 100), scoring="heads", score_queries="question") == ([97, 98], [99])
    assert SelectionOptions(scoring="heads", look_ahead=8).tokens_ahead == 0


def test_of_a_long_question_the_last_tokens():
    assert positions(1000, (100, 900), score_queries="question")[0] == list(range(900 - MAX_QUESTION_ROWS, 900))
    assert positions(1000, (100, 1000), score_queries="both")[0] == list(range(999 - MAX_QUESTION_ROWS, 999))


def test_several_questions_have_equal_parts_of_the_rows():
    half = MAX_QUESTION_ROWS // 2
    asked = [(100, 900), (910, 1000)]
    rows = [*range(900 - half, 900), *range(1000 - half, 1000)]
    assert positions(1000, *asked, score_queries="question")[0] == rows
    spare = [range(100, 103), range(900 - (MAX_QUESTION_ROWS - 3), 900)]
    needed = ScoreQueries.of(SelectionOptions(scoring="heads"), 1000, [(100, 103), (200, 900)])
    assert [*needed.by_question] == spare


def test_an_unknown_question_is_the_end_that_is_always_kept():
    assert positions(100, None, score_queries="question", protect_last=7)[0] == list(range(93, 100))
    assert positions(5, None, score_queries="question", protect_last=7)[0] == list(range(5))


@given(st.integers(1, 300), st.data())
def test_no_position_twice_and_all_keys_that_a_query_sees_are_before_it(prompt, data):
    start = data.draw(st.integers(0, prompt - 1))
    question = data.draw(st.none() | st.tuples(st.just(start), st.integers(start + 1, prompt)))
    mode = data.draw(st.sampled_from(["look_ahead", "question", "both"]))
    options = SelectionOptions(score_queries=mode, look_ahead=data.draw(st.integers(0, 9)))
    needed = ScoreQueries.of(options, prompt, [question] if question else [])
    every = [*needed.rows, *needed.steps]
    assert every == sorted(set(every))
    assert len(every) == needed.count >= 1
    assert needed.visible(prompt) == [min(position + 1, prompt) for position in every]
    assert len(needed.rows) <= MAX_QUESTION_ROWS


@pytest.mark.parametrize("mode", ["question", "both"])
def test_one_token(mode):
    rows, steps = positions(1, None, score_queries=mode, look_ahead=1)
    assert (rows, steps) == (([0], []) if mode == "question" else ([], [0, 1]))
