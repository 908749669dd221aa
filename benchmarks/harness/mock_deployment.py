"""A deployment with engines that run no model, for benchmarks of the path around them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.config.load import config_from_flags
from cluster.config.schema import DeploymentConfig
from demo_models.ports import free_port

NAME = "bench"
"""The name of its model for clients."""


def mock_deployment(
    target: str, speculator: str, engine_options: Mapping[str, Mapping[str, Any]], **router: Any
) -> DeploymentConfig:
    """Mock engines on a free port, without drafts. The speculator reads every prompt.

    target, speculator: models whose config and tokenizer are read. engine_options: by pool, of its mock engine. router:
    settings of `router:`. Raises SkimError if one is wrong.
    """
    flags: dict[str, Any] = {"served_model_name": NAME, "decode.method": "none", "selection.selector": "speculator"}
    for pool, model in (("target", target), ("speculator", speculator)):
        flags |= {f"{pool}.model": Path(model), f"{pool}.engine": "mock", f"{pool}.cpus_per_replica": 0.1}
        flags[f"{pool}.engine_options"] = dict(engine_options.get(pool, {}))
    settings = {"port": free_port(), "cpus": 0.1, **router}
    return config_from_flags(None, flags | {f"router.{name}": value for name, value in settings.items()})
