"""The failed starts of a pool in Ray's key-value store."""

import pytest

from actors.lifecycle.starts import MAX_REASON_CHARS, FailedStarts, forget_failed_starts, last_failed_start


@pytest.fixture(autouse=True)
def store(kv_store):
    return kv_store


def test_the_last_failure_of_a_pool_is_found_whatever_its_settings():
    FailedStarts("skim", "target", "old").failed(ValueError("old"))
    FailedStarts("skim", "speculator", "other").failed(ValueError("other pool"))
    starts = FailedStarts("skim", "target", "new")
    starts.failed(ValueError("first"))
    starts.failed(ValueError("Traceback\n  of several lines\nthe reason"))
    found = last_failed_start("skim", "target")
    assert (found.failures, found.reason) == (2, "the reason")
    starts.succeeded()
    assert last_failed_start("skim", "target") is None
    assert last_failed_start("skim", "speculator").reason == "other pool"


def test_a_reason_is_one_short_line():
    FailedStarts("skim", "target", "x").failed(ValueError("y" * 9999))
    assert len(last_failed_start("skim", "target").reason) == MAX_REASON_CHARS
    FailedStarts("skim", "prefill", "x").failed(ValueError())
    assert last_failed_start("skim", "prefill").reason == "ValueError"


def test_a_changed_deployment_forgets_all(store):
    store["other"] = "stays"
    FailedStarts("skim", "target", "x").failed(ValueError("x"))
    forget_failed_starts("skim")
    assert last_failed_start("skim", "target") is None
    assert store == {"other": "stays"}


def test_outside_ray_nothing_is_noted(monkeypatch, store):
    monkeypatch.setattr("actors.lifecycle.starts.ray.is_initialized", lambda: False)
    starts = FailedStarts("skim", "target", "x")
    starts.failed(ValueError("x"))
    starts.succeeded()
    assert starts.in_a_row() == 0
    assert store == {}


@pytest.mark.parametrize("other", ["skim2", "ski", "", "skim/target-", "skim%2F"])
def test_applications_do_not_mix(other):
    for app in ("skim", other):
        FailedStarts(app, "target", "x").failed(ValueError(app))
    assert FailedStarts("skim", "target", "x").in_a_row() == 1
    assert last_failed_start("skim", "target").reason == "skim"
    FailedStarts("skim", "target", "x").succeeded()
    assert last_failed_start("skim", "target") is None
    forget_failed_starts("skim")
    assert last_failed_start(other, "target").failures == 1
