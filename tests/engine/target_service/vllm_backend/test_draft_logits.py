"""The table of q that the V2 rejection sampler reads, tested on the function without an engine."""

import numpy as np
import torch

from kv_transfer.drafts import Drafted
from target_service.vllm_backend.speculation.remote_speculator import DraftLogits

REQUESTS, MOST, VOCABULARY = 3, 2, 6


def table() -> DraftLogits:
    return DraftLogits(REQUESTS, MOST, VOCABULARY, torch.device("cpu"))


def q_of(logits: DraftLogits, row: int, temperature: float) -> torch.Tensor:
    """As the rejection sampler reads it."""
    return (logits.table[row] / temperature).softmax(-1)


def sampled() -> Drafted:
    ids, q = np.array([[2, 4], [1, 0]], np.int32), np.array([[0.75, 0.25], [1.0, 0.0]], np.float32)
    return Drafted(np.array([2, 1], np.int32), ids.ravel(), q.ravel())


def test_rows_with_q_and_without() -> None:
    logits = table()
    logits.write({0: (sampled(), 0.5), 2: (Drafted(np.array([3], np.int32)), 1.7), 1: (sampled(), 0.0)})
    expected = torch.zeros(2, VOCABULARY)
    expected[0, 2], expected[0, 4], expected[1, 1] = 0.75, 0.25, 1.0
    torch.testing.assert_close(q_of(logits, 0, 0.5), expected, atol=1e-7, rtol=1e-6)
    assert q_of(logits, 2, 1.7)[0].tolist() == [0, 0, 0, 1, 0, 0]
    # Greedy verification does not read q.
    assert (logits.table[1] == -torch.inf).all()


def test_the_next_drafts_replace_the_last_ones() -> None:
    logits = table()
    logits.write({0: (sampled(), 1.0), 1: (sampled(), 1.0)})
    logits.write({0: (Drafted(np.array([5], np.int32)), 1.0)})
    assert q_of(logits, 0, 1.0)[0].tolist() == [0, 0, 0, 0, 0, 1]
    assert (logits.table[0, 1] == -torch.inf).all()
    torch.testing.assert_close(q_of(logits, 1, 1.0)[0, 2], torch.tensor(0.75))
    logits.write({0: (None, 1.0), 1: (None, 0.0)})
    assert (logits.table == -torch.inf).all()
