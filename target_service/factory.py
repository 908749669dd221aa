"""Starts a target engine of a given kind. An engine's module is imported only when it is needed."""

from collections.abc import Mapping
from typing import Any

from skim_common.engine_options import check_option_names
from skim_common.errors import SkimError
from target_service.engine import TargetEngine


def create_engine(
    kind: str, model: str, *, tensor_parallel: int = 1, options: Mapping[str, Any] | None = None
) -> TargetEngine:
    """Start an engine. kind: vllm or mock. options: keyword arguments of that engine.

    Raises ModelError for a model folder that cannot be used, SkimError for an unknown kind or option.
    """
    options = dict(options or {})
    if kind == "vllm":
        from target_service.vllm_backend.engine import VllmTarget

        return VllmTarget(model, tensor_parallel=tensor_parallel, **options)
    if kind == "mock":
        from target_service.mock_engine import MockTarget

        check_option_names(MockTarget, options, "mock target")
        return MockTarget(model, **options)
    raise SkimError(f"unknown target engine {kind!r}: choose vllm or mock")
