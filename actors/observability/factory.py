"""The tracer of a process, by the settings of a deployment."""

from collections.abc import Mapping
from typing import Any

from actors.observability.tracing import NO_TRACER, Tracer


def create_tracer(settings: Mapping[str, Any] | None) -> Tracer:
    """settings: endpoint, sample_ratio and service_name of `observability.traces`; None means that traces are off."""
    if settings is None:
        return NO_TRACER
    from actors.observability.tracing_otlp import otlp_tracer

    return otlp_tracer(**settings)
