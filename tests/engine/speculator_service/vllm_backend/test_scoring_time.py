"""The worker's time of scoring on CUDA. Events, scores and payloads are replaced by fakes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from speculator_service.vllm_backend import worker
from speculator_service.vllm_backend.capture.scored_requests import Computed, ScoredRequest
from speculator_service.vllm_backend.worker import SpeculatorWorker


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order. An event may be read only after the payload of its request."""
    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None: ...

        def record(self) -> None:
            done.append("event")

        def elapsed_time(self, end: Any) -> float:
            assert done[-1] == "payload"
            return 3.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(worker, "_payload", lambda *args: done.append("payload") or {"tokens": []})
    return done


def finish(done: list[str], *, driver: bool) -> tuple[dict[str, Any], float]:
    """The payloads of a step that ends two scored requests, and the counted milliseconds."""
    rank: Any = SimpleNamespace(
        device=torch.device("cuda"),
        is_driver_worker=driver,
        _scoring_ms=0.0,
        _score=lambda request: done.append("score"),
    )
    options = {"look_ahead": 0, "rows": [], "steps": 1}
    computed = [Computed(ScoredRequest(id, 4, options, [0], {}, {}, 0.0), 0, 4) for id in "ab"]
    output: Any = SimpleNamespace(sampled_token_ids=[[], []], req_id_to_index={"a": 0, "b": 1})
    return SpeculatorWorker._finish(rank, [(computed, output)]), rank._scoring_ms


def test_events_surround_the_scoring_and_are_read_after_the_payload(done: list[str]) -> None:
    payloads, milliseconds = finish(done, driver=True)
    assert done == ["event", "score", "event"] * 2 + ["payload"] * 2
    assert set(payloads) == {"a", "b"}
    assert milliseconds == 6.0


def test_other_ranks_make_no_payload_and_read_no_event(done: list[str]) -> None:
    assert finish(done, driver=False) == ({}, 0.0)
    assert "payload" not in done
