"""The rows of questions that a step captures, by the ledger alone: no engine is started."""

from types import SimpleNamespace

from speculator_service.scoring.queries import SCORE_ARG
from speculator_service.vllm_backend.scored_requests import RequestLedger


def scheduled(**requests):
    """A scheduler's output. requests: id -> (prompt tokens, spans of rows, tokens in this step)."""

    def new(id, prompt, questions):
        params = SimpleNamespace(extra_args={SCORE_ARG: {"questions": questions}})
        blocks = ([*range(1000)],)
        return SimpleNamespace(
            req_id=id, sampling_params=params, block_ids=blocks, num_computed_tokens=0, prompt_len=prompt
        )

    return SimpleNamespace(
        finished_req_ids=set(),
        scheduled_new_reqs=[new(id, *numbers[:2]) for id, numbers in requests.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
        ),
        num_scheduled_tokens={id: numbers[2] for id, numbers in requests.items()},
    )


def test_a_step_with_too_many_rows_keeps_the_last_of_each_question():
    ledger = RequestLedger(block_size=4, rows=8)
    step = scheduled(a=(20, [(10, 16)], 20), b=(30, [(0, 3)], 30), c=(10, [(1, 9)], 5), d=(10, [(8, 9)], 5))
    computed = ledger.update(step)
    assert [part.is_last for part in computed] == [True, True, False, False]
    wanted = ledger.wanted(computed)
    assert all(one.slot == one.position for one in wanted)
    # Three questions share eight rows. The last prompt tokens of a and b are steps and d's question comes later.
    expected = {"a": [14, 15, 19], "b": [1, 2, 29], "c": [3, 4], "d": []}
    assert {id: [one.position for one in wanted if one.request.id == id] for id in "abcd"} == expected
    needed = {id: request.rows for id, request in ledger.requests.items()}
    assert needed == {"a": [14, 15], "b": [1, 2], "c": [3, 4, 5, 6, 7, 8], "d": [8]}


def test_a_step_with_few_rows_takes_all():
    ledger = RequestLedger(block_size=4, rows=8)
    wanted = ledger.wanted(ledger.update(scheduled(a=(20, [(10, 16)], 20))))
    assert [one.position for one in wanted] == [10, 11, 12, 13, 14, 15, 19]
    assert ledger.wanted([]) == []


def test_a_step_with_too_many_rows_keeps_the_last_rows_of_several_questions():
    ledger = RequestLedger(block_size=4, rows=4)
    ledger.wanted(ledger.update(scheduled(a=(20, [(1, 4), (10, 13)], 20))))
    assert ledger.requests["a"].questions == [[3], [10, 11, 12]]
