"""What a scoring request tells the worker: the queries that score the prompt, and whose attention counts."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.options import SelectionOptions
from speculator_service.scoring.heads import Head, HeadProfile
from speculator_service.scoring.queries import MAX_QUESTION_ROWS, ScoreQueries, question_rows

HEADS = SelectionOptions(scoring="heads", look_ahead=8)


def profile(**changes):
    fields = {"question": 1.0, "last": 1.0, "heads": (Head(layer=1, head=0, weight=2.0),), **changes}
    return HeadProfile(model="some", fingerprint="", **fields)


def asked(options, prompt, *questions, profile=None):
    queries = ScoreQueries.of(options, prompt, questions, profile, (2, 5))
    assert msgspec.convert(msgspec.to_builtins(queries), ScoreQueries) == queries
    return queries


def test_attention_of_all_heads_has_the_look_ahead_alone():
    queries = asked(SelectionOptions(look_ahead=3), 100, (40, 50), profile=profile())
    assert queries == ScoreQueries(look_ahead=3, eos_token_ids=(2, 5), layers="last_half", aggregation="max")
    assert queries.questions == queries.heads == ()


def test_retrieval_heads_need_the_question_and_the_last_token():
    queries = asked(HEADS, 100, (40, 50), profile=profile())
    assert queries == ScoreQueries(heads=((1, 0, 2.0),), questions=((40, 50),), question=1.0, last=1.0)
    assert queries.look_ahead == HEADS.tokens_ahead == 0
    assert asked(HEADS, 100, (40, 50), profile=profile(question=0.0)).questions == ()


def test_the_last_prompt_token_is_no_row():
    assert question_rows(HEADS, 100, [(97, 100)]) == ((97, 99),)
    assert question_rows(HEADS, 100, [(99, 100)]) == question_rows(HEADS, 1, []) == ()


def test_of_a_long_question_the_last_tokens():
    assert question_rows(HEADS, 1000, [(100, 900)]) == ((900 - MAX_QUESTION_ROWS, 900),)
    assert question_rows(HEADS, 1000, [(100, 1000)]) == ((999 - MAX_QUESTION_ROWS, 999),)


def test_several_questions_have_equal_parts_of_the_rows():
    half = MAX_QUESTION_ROWS // 2
    assert question_rows(HEADS, 2000, [(100, 900), (910, 1000)]) == ((900 - half, 900), (1000 - half, 1000))
    spare = ((100, 103), (900 - (MAX_QUESTION_ROWS - 3), 900))
    assert question_rows(HEADS, 1000, [(100, 103), (200, 900)]) == spare


def test_an_unknown_question_is_the_end_that_is_always_kept():
    options = HEADS.model_copy(update={"protect_last": 7})
    assert question_rows(options, 100, []) == ((93, 99),)
    assert question_rows(options, 5, []) == ((0, 4),)


@given(st.integers(1, 300), st.data())
def test_rows_are_few_and_before_the_last_token(prompt, data):
    start = data.draw(st.integers(0, prompt - 1))
    question = data.draw(st.none() | st.tuples(st.just(start), st.integers(start + 1, prompt)))
    rows = [row for span in question_rows(HEADS, prompt, [question] if question else []) for row in range(*span)]
    assert rows == sorted(set(rows))
    assert len(rows) <= MAX_QUESTION_ROWS
    assert all(0 <= row < prompt - 1 for row in rows)
