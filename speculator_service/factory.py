"""Starts a speculator engine of a given kind. An engine's module is imported only when it is needed."""

from collections.abc import Mapping
from typing import Any

from skim_common.engine_options import check_option_names
from skim_common.errors import SkimError
from skim_common.models.info import inspect_model
from speculator_service.engine import SpeculatorEngine


def create_engine(
    kind: str, model: str, *, tensor_parallel: int = 1, options: Mapping[str, Any] | None = None
) -> SpeculatorEngine:
    """Start an engine. kind: vllm, lexical or mock. options: keyword arguments of that engine.

    Raises ModelError for a model folder that cannot be used, SkimError for an unknown kind or option.
    """
    options = dict(options or {})
    if kind == "vllm":
        from speculator_service.vllm_backend.engine import VllmSpeculator

        return VllmSpeculator(model, tensor_parallel=tensor_parallel, **options)
    if kind == "mock":
        from speculator_service.mock_engine import MockSpeculator

        check_option_names(MockSpeculator, options, "mock speculator")
        return MockSpeculator(model, **options)
    if kind == "lexical":
        from speculator_service.lexical_engine import LexicalSpeculator

        if options:
            raise SkimError(f"the lexical selector has no engine option {next(iter(options))!r}: remove it")
        return LexicalSpeculator(inspect_model(model, engine="lexical"))
    raise SkimError(f"unknown speculator engine {kind!r}: choose vllm, lexical or mock")
