"""Starts a speculator engine of a given kind. An engine's module is imported only when it is needed."""

from collections.abc import Mapping
from typing import Any

from skim_common.engine_options import named_engine
from speculator_service.engine import SpeculatorEngine

NAMED = {
    "vllm": "speculator_service.vllm_backend.engine:VllmSpeculator",
    "mock": "benchmarks.mock_engines.speculator:MockSpeculator",
}
"""Short names of engine classes."""


def create_engine(
    kind: str, model: str, *, tensor_parallel: int = 1, options: Mapping[str, Any] | None = None
) -> SpeculatorEngine:
    """Start an engine. kind: vllm, mock, or a subclass of SpeculatorEngine as `package.module:Class`, which is
    called with the model, `tensor_parallel` and these options.

    Raises ModelError for a model folder that cannot be used, SkimError for an unknown kind or option.
    """
    engine: SpeculatorEngine = named_engine(kind, NAMED, SpeculatorEngine, model, tensor_parallel, options or {})
    return engine
