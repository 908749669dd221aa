"""vLLM's configuration of a target with remote drafts: model runner, async scheduling, places for drafts. No engine."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.config.vllm as vllm_config
from vllm.config import VllmConfig

from kv_transfer.options import DecodeOptions
from target_service.vllm_backend.scheduler import AsyncTargetScheduler, _limit_drafts
from target_service.vllm_backend.speculation.remote_drafts import REPORT, DraftReport
from target_service.vllm_backend.start import RemoteDraftsConfig, remote_drafts_config, speculation_options
from vllm_hooks.engine import engine_config

REFUSED = ["speculative method 'custom_class'"]


MODEL = {"max_position": 512}


def remote(model: str, **options: Any) -> VllmConfig:
    speculation = speculation_options(DecodeOptions(method="remote"), None, None, {})
    with remote_drafts_config():
        return engine_config("no config", model=model, enforce_eager=True, **speculation, **options)


def test_the_method_no_longer_keeps_a_target_on_the_v1_runner(model: str) -> None:
    config = remote(model)
    assert VllmConfig._get_v2_model_runner_unsupported_features(config) == REFUSED
    assert config._get_v2_model_runner_unsupported_features() == []


def test_pipeline_parallel_keeps_it_there(model: str) -> None:
    config = remote(model)
    config.parallel_config.pipeline_parallel_size = 2
    assert config._get_v2_model_runner_unsupported_features() == REFUSED


def test_vllms_processes_keep_the_class_and_the_choice(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine core receives a pickled configuration and checks it again."""
    monkeypatch.setattr(vllm_config, "HAS_TRITON", True)
    config = remote(model, async_scheduling=True)
    received = pickle.loads(pickle.dumps(config))
    received.__post_init__()
    assert isinstance(received, RemoteDraftsConfig)
    for one in (config, received):
        assert one.use_v2_model_runner
        assert one.scheduler_config.async_scheduling
        assert one.max_concurrent_batches == 2
        assert one.model_config.disable_cascade_attn


@pytest.mark.parametrize(("device", "asked", "v2", "expected"), [
    ("cuda", None, True, True),
    ("cuda", False, True, False),
    ("cuda", None, False, False),
    ("cuda", True, False, False),
    ("cpu", None, True, False),
])  # fmt: skip
def test_async_scheduling(
    model: str, monkeypatch: pytest.MonkeyPatch, device: str, asked: bool | None, v2: bool, expected: bool
) -> None:
    config = remote(model)
    config.scheduler_config.async_scheduling = asked
    config.device_config = SimpleNamespace(device_type=device)
    monkeypatch.setattr(VllmConfig, "__post_init__", lambda self: None)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(v2)))
    config.__post_init__()
    assert config.scheduler_config.async_scheduling == expected


def request(most: int | None, *, drafter: bool = True, placeholders: int = 4) -> SimpleNamespace:
    settings = [most, True, 32, b"", ["a:1", "s"] if drafter else None]
    extra_args = {"skim_drafting": settings} if most is not None else None
    return SimpleNamespace(
        spec_token_ids=[-1] * placeholders, sampling_params=SimpleNamespace(extra_args=extra_args)
    )  # fmt: skip


def test_places_for_drafts_follow_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler: Any = object.__new__(AsyncTargetScheduler)
    base = AsyncTargetScheduler.__mro__[1:]
    owner = next(c for c in base if "update_from_output" in vars(c))
    monkeypatch.setattr(owner, "update_from_output", lambda self, scheduled, output: "outputs")
    scheduler._wanted = {}
    scheduler.requests = {
        "new": request(4),
        "few": request(2),
        "plain": request(None),
        "alone": request(4, drafter=False),
    }

    def reserved() -> dict[str, int]:
        for one in scheduler.requests.values():
            one.spec_token_ids = [-1] * 4
        _limit_drafts(scheduler.requests, scheduler.requests, scheduler._wanted)
        return {id: len(one.spec_token_ids) for id, one in scheduler.requests.items()}

    assert reserved() == {"new": 4, "few": 2, "plain": 0, "alone": 0}
    scheduled = SimpleNamespace(
        scheduled_spec_decode_tokens={"new": [-1] * 4, "few": [-1] * 2}, num_invalid_spec_tokens=None
    )
    output = SimpleNamespace()
    setattr(output, REPORT, DraftReport({"new": 1, "few": 2}, {"new": 3, "few": 0, "gone": 2}))
    assert scheduler.update_from_output(scheduled, output) == "outputs"
    assert reserved() == {"new": 3, "few": 0, "plain": 0, "alone": 0}
    # vLLM's statistics leave out the three places without a draft.
    assert scheduled.num_invalid_spec_tokens == {"new": 3}
    assert "gone" not in scheduler._wanted
