"""Places for drafts without a draft, on the V2 model runner: tested on the speculator without an engine."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kv_transfer.drafts import Drafted
from target_service.vllm_backend.speculation import remote_speculator
from target_service.vllm_backend.speculation.remote_speculator import DraftReport, RemoteSpeculator

A, B, C = 11, 12, 13


def speculator(**drafts: list[int]) -> Any:
    found = object.__new__(RemoteSpeculator)
    vars(found).update(_device=torch.device("cpu"), report=DraftReport({}, {}))
    found._proposals = {id: Drafted(np.array(tokens, np.int32)) for id, tokens in drafts.items()}
    return found


def batch(places: dict[str, int]) -> SimpleNamespace:
    """A decode step after a prompt of two tokens, with these places per request."""
    counts = np.array(list(places.values()), np.int32)
    rows = int(counts.sum()) + len(places)
    return SimpleNamespace(
        req_ids=list(places),
        num_draft_tokens_per_req=counts,
        cu_num_logits_np=np.cumsum([0, *(counts + 1)]),
        logits_indices=torch.arange(2, 2 + rows),
        input_ids=torch.arange(100, 102 + rows, dtype=torch.int32),
    )


def test_places_without_a_draft_are_masked() -> None:
    ours, step = speculator(a=[A, B], b=[C]), batch({"a": 3, "b": 3, "c": 0, "d": 2})
    # Rows: 100 101 | a: 102 and 103 104 105 | b: 106 and 107 108 109 | c: 110 | d: 111 and 112 113.
    masked = ours._mask(step)
    assert masked is not None
    assert masked.tolist() == [5, 8, 9, 12, 13]
    assert [i for i, id in enumerate(step.input_ids.tolist()) if id == -1] == masked.tolist()
    assert ours.report.verified == {"a": 2, "b": 1, "d": 0}


def test_more_drafts_than_places() -> None:
    ours, step = speculator(a=[A, B, C]), batch({"a": 1})
    assert ours._mask(step) is None
    assert ours.report.verified == {"a": 1}


def test_the_mask_is_gone_after_the_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph that pads a later step would read it as a token id."""
    ours, step = speculator(), batch({"a": 2})
    read = []

    def sample(hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        read.extend(input_batch.input_ids.tolist())
        return SimpleNamespace(sampled_token_ids="tokens"), "counts"

    runner = SimpleNamespace(sample=sample)
    monkeypatch.setattr(remote_speculator, "get_tp_group", lambda: SimpleNamespace(rank_in_group=0))
    ours.attach(runner)
    runner.sample(None, step, None)
    assert read[2:] == [102, -1, -1]
    assert step.input_ids.tolist()[2:] == [102, 0, 0]
    assert ours._sampled == ("tokens", "counts")
