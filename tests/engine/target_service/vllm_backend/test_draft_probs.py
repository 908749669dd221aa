"""The q that the verification receives, tested on the function without an engine."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kv_transfer.drafts import Drafted
from target_service.vllm_backend.speculation import proposer
from target_service.vllm_backend.speculation.proposer import DraftDistributions

VOCABULARY = 6


def verified(proposals: dict[str, Drafted], scheduled: dict[str, list[int]]) -> torch.Tensor | None:
    """The q of a step over the requests `a`, `b`, `c` with these scheduled drafts."""
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=["a", "b", "c"], vocab_size=VOCABULARY))
    distributions = DraftDistributions(runner)
    distributions.proposals, distributions.scheduled = proposals, scheduled
    drafts = [scheduled.get(id, []) for id in runner.input_batch.req_ids]
    ids = torch.tensor([token for row in drafts for token in row], dtype=torch.int32)
    return runner._get_spec_decode_draft_probs(
        SimpleNamespace(num_draft_tokens=[len(row) for row in drafts], draft_token_ids=ids)
    )


def test_rows_with_q_without_and_padded() -> None:
    """vLLM pads a request that joins with its last prompt token with placeholder drafts, which have no q."""
    sampled = Drafted(np.array([2], np.int32), np.array([2, 4], np.int32), np.array([0.75, 0.25], np.float32))
    found = verified({"a": sampled, "b": Drafted(np.array([1, 5], np.int32))}, {"a": [2], "b": [1, 5], "c": [-1, -1]})
    expected = torch.zeros(5, VOCABULARY)
    expected[0, 2], expected[0, 4] = 0.75, 0.25
    expected[1, 1] = expected[2, 5] = 1.0
    assert torch.equal(found, expected)


def test_drafts_that_are_not_those_proposed_are_certain() -> None:
    sampled = Drafted(np.array([2], np.int32), np.array([2, 4], np.int32), np.array([0.75, 0.25], np.float32))
    assert verified({"a": sampled}, {"a": [3]}) is None


def test_all_requests_together_need_two_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    copy = proposer.async_tensor_h2d
    monkeypatch.setattr(proposer, "async_tensor_h2d", lambda *args: copies.append(args) or copy(*args))
    a = Drafted(np.array([2], np.int32), np.array([2, 4], np.int32), np.array([0.75, 0.25], np.float32))
    ids = np.array([[1, 3, 5], [0, 1, 2]], np.int32)
    q = np.array([[0.5, 0.25, 0.25], [0.125, 0.25, 0.625]], np.float32)
    c = Drafted(np.array([5, 0], np.int32), ids.ravel(), q.ravel())
    found = verified({"a": a, "c": c}, {"a": [2], "b": [4], "c": [5, 0]})
    expected = torch.zeros(4, VOCABULARY)
    expected[0, 2], expected[0, 4], expected[1, 4] = 0.75, 0.25, 1.0
    for row in (0, 1):
        expected[2 + row, ids[row].tolist()] = torch.from_numpy(q[row])
    assert torch.equal(found, expected)
    assert len(copies) == 2
