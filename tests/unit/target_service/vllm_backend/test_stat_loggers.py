"""vLLM's own metrics, told to Ray by a class that the deployment file names."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from ray.util import metrics as ray_metrics
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.stats import SchedulerStats

from skim_common.errors import SkimError
from target_service.vllm_backend import engine
from target_service.vllm_backend.start import find_stat_logger

MODEL = Path(__file__).parents[4] / "demo_models" / "target"
OVER_RAY = "vllm.v1.metrics.ray_wrappers.RayPrometheusStatLogger"


def test_vllms_metrics_reach_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: dict[str, float] = {}

    def remember(self: Any, value: float, tags: dict[str, str]) -> None:
        self._validate_tags(self._get_final_tags(tags))
        recorded[self.info["name"]] = value

    monkeypatch.setattr(ray_metrics.Metric, "_record", remember)
    config = AsyncEngineArgs(model=str(MODEL), dtype="float32").create_engine_config()
    logger = find_stat_logger(OVER_RAY)(config, [0])  # type: ignore[call-arg, arg-type]
    logger.record(SchedulerStats(num_running_reqs=3, kv_cache_usage=0.25), None)
    assert recorded["vllm_num_requests_running"] == 3
    assert recorded["vllm_kv_cache_usage_perc"] == 0.25


def exported(monkeypatch: pytest.MonkeyPatch, *more: Any) -> bool:
    """Whether vLLM's metrics are in the process's registry beside a logger that tells Ray. more: further loggers."""
    monkeypatch.setattr(ray_metrics.Metric, "_record", lambda *_: None)
    config = AsyncEngineArgs(model=str(MODEL), dtype="float32").create_engine_config()
    try:
        StatLoggerManager(config, custom_stat_loggers=[find_stat_logger(OVER_RAY), *more])  # type: ignore[list-item]
        return any(family.name == "vllm:generation_tokens" for family in REGISTRY.collect())
    finally:
        unregister_vllm_metrics()


def test_the_endpoint_has_them_beside_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's own list. Negative control: vLLM leaves its own logger out beside one that is like it."""
    told: list[Any] = []

    def start(*_: Any, stat_loggers: list[Any], **__: Any) -> None:
        told.extend(stat_loggers)
        raise SkimError("not started")

    monkeypatch.setattr(engine, "start_engine", start)
    with pytest.raises(SkimError, match="not started"):
        engine.VllmTarget(str(MODEL), stat_loggers=[OVER_RAY])
    assert told[1] is find_stat_logger(OVER_RAY)
    assert exported(monkeypatch, *told[2:])
    assert not exported(monkeypatch)


@pytest.mark.parametrize("name", ["nowhere.Logger", "vllm.v1.metrics.loggers.Nothing", "word", "pathlib.Path"])
def test_a_name_that_is_no_stat_logger_is_refused(name: str) -> None:
    with pytest.raises(SkimError, match="stat_loggers names"):
        find_stat_logger(name)
