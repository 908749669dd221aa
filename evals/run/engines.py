"""Both engines in this process, as all measurements of quality start them."""

from collections.abc import Callable, Mapping
from typing import Any

from skim.engines import EngineSettings, PairEngines
from skim_common.environment import unless_set


def start_pair(
    target: str,
    speculator: str,
    engine: str,
    target_options: Mapping[str, Any],
    speculator_options: Mapping[str, Any],
    create_target: Callable[..., Any] | None = None,
) -> PairEngines:
    """Start both. engine: vllm or mock. create_target: as `EngineSettings.create`.

    Raises ModelError for models that do not fit, SkimError for an engine that does not start.
    """
    environment = unless_set({"VLLM_CPU_KVCACHE_SPACE": "1"}) if engine == "vllm" else {}
    return PairEngines(
        speculator=EngineSettings(speculator, engine, speculator_options, environment=environment),
        target=EngineSettings(target, engine, target_options, environment=environment, create=create_target),
    )
