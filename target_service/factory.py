"""Starts a target engine of a given kind. An engine's module is imported only when it is needed."""

from collections.abc import Mapping
from typing import Any

from skim_common.engine_options import check_option_names, engine_class
from target_service.engine import TargetEngine

NAMED = {
    "vllm": "target_service.vllm_backend.engine:VllmTarget",
    "mock": "benchmarks.mock_engines.target:MockTarget",
}
"""Short names of engine classes."""


def create_engine(
    kind: str, model: str, *, tensor_parallel: int = 1, options: Mapping[str, Any] | None = None
) -> TargetEngine:
    """Start an engine. kind: vllm, mock, or a subclass of TargetEngine as `package.module:Class`, which is called with
    the model, `tensor_parallel` and these options.

    Raises ModelError for a model folder that cannot be used, SkimError for an unknown kind or option.
    """
    options = dict(options or {})
    engine = engine_class(kind, NAMED, TargetEngine, "target")
    check_option_names(engine, options, f"{kind} target")
    return engine(model, tensor_parallel=tensor_parallel, **options)
