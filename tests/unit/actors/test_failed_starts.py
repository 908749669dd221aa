"""The failed starts of a pool in Ray's key-value store."""

import pytest

from actors.failed_starts import LONGEST_REASON, FailedStarts, forget_failed_starts, last_failed_start


@pytest.fixture(autouse=True)
def store(kv_store):
    return kv_store


def test_the_last_failure_of_a_pool_is_found_whatever_its_settings():
    FailedStarts("target", "old").failed(ValueError("old"))
    FailedStarts("speculator", "other").failed(ValueError("other pool"))
    starts = FailedStarts("target", "new")
    starts.failed(ValueError("first"))
    starts.failed(ValueError("Traceback\n  of several lines\nthe reason"))
    found = last_failed_start("target")
    assert (found.failures, found.reason) == (2, "the reason")
    starts.succeeded()
    assert last_failed_start("target") is None
    assert last_failed_start("speculator").reason == "other pool"


def test_a_reason_is_one_short_line():
    FailedStarts("target", "x").failed(ValueError("y" * 9999))
    assert len(last_failed_start("target").reason) == LONGEST_REASON
    FailedStarts("prefill", "x").failed(ValueError())
    assert last_failed_start("prefill").reason == "ValueError"


def test_a_changed_deployment_forgets_all(store):
    store["other"] = "stays"
    FailedStarts("target", "x").failed(ValueError("x"))
    forget_failed_starts()
    assert last_failed_start("target") is None
    assert store == {"other": "stays"}


def test_outside_ray_nothing_is_noted(monkeypatch, store):
    monkeypatch.setattr("actors.failed_starts.ray.is_initialized", lambda: False)
    starts = FailedStarts("target", "x")
    starts.failed(ValueError("x"))
    starts.succeeded()
    assert starts.in_a_row() == 0
    assert store == {}
