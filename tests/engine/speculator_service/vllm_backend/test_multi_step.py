"""The merged outputs of several steps, with arrays only: no engine is started."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def outputs():
    """Three steps with a chunk of a prompt, a sampled request (two tokens), and a greedy one (three, no logprobs)."""
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

    def step(rows, width):
        ids = list(rows)
        tokens = [[rows[id]] if rows[id] is not None else [] for id in ids]
        lists = None
        if width:
            # Each number contains its row and its column.
            table = np.array([[100 * (rows[id] or 0) + column for column in range(width)] for id in ids])
            lists = LogprobsLists(table, -table.astype(np.float32), np.arange(len(ids)))
        return ModelRunnerOutput(ids, {id: i for i, id in enumerate(ids)}, tokens, lists)

    return [
        step({"prompt": None, "sampled": 1, "greedy": 2}, 5),
        step({"greedy": 4, "sampled": 3}, 3),
        step({"greedy": 5}, 0),
    ]


def test_each_request_gets_its_own_tokens_and_logprobs(outputs):
    from speculator_service.vllm_backend.multi_step import merge

    merged = merge(outputs)
    assert merged.req_ids == ["prompt", "sampled", "greedy"]
    assert merged.sampled_token_ids == [[], [1, 3], [2, 4, 5]]
    sampled = merged.logprobs.slice_request(1, 2)
    assert sampled.logprob_token_ids[:, :3].tolist() == [[100, 101, 102], [300, 301, 302]]
    assert sampled.logprobs[:, :3].tolist() == [[-100, -101, -102], [-300, -301, -302]]
    assert sampled.sampled_token_ranks.tolist() == [1, 1]
    assert merged.logprobs.slice_request(2, 3).logprob_token_ids[:, 0].tolist() == [200, 400, 0]


def test_a_single_step_stays_as_it_is(outputs):
    from speculator_service.vllm_backend.multi_step import merge

    assert merge(outputs[:1]) is outputs[0]
