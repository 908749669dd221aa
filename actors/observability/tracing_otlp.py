"""OpenTelemetry's SDK: spans go to a collector by OTLP over HTTP. Only this file imports the SDK.

This module makes a tracer provider of its own, because vLLM sets the process-wide provider when its traces are on
(vllm.tracing.otel).
"""

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from ray import serve
from ray.serve.exceptions import RayServeException

TRACES_PATH = "/v1/traces"
"""The path for spans below the OTLP/HTTP endpoint (OpenTelemetry's OTEL_EXPORTER_OTLP_ENDPOINT)."""


def otlp_provider(endpoint: str, sample_ratio: float, service_name: str) -> TracerProvider:
    """The settings are those of `observability.traces`. A thread sends spans in batches; a full queue drops them.

    The exporter's environment variables are in effect (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE).
    """
    exporter = OTLPSpanExporter(endpoint.rstrip("/") + TRACES_PATH)
    return provider(BatchSpanProcessor(exporter), sample_ratio, _resource(service_name))


def provider(
    processor: SpanProcessor, sample_ratio: float = 1.0, resource: Mapping[str, str] | None = None
) -> TracerProvider:
    """sample_ratio: for traces that begin here; others follow their parent."""
    sampler = ParentBasedTraceIdRatio(sample_ratio)
    made = TracerProvider(sampler=sampler, resource=Resource.create(resource), shutdown_on_exit=False)
    made.add_span_processor(processor)
    return made


def _resource(service_name: str) -> dict[str, str]:
    """The resource attributes: in a Serve replica, a service name such as `skim-target` and the replica's id."""
    try:
        replica = serve.get_replica_context()
    except RayServeException:
        return {"service.name": service_name}
    return {
        "service.namespace": service_name,
        "service.name": f"{service_name}-{replica.deployment}",
        "service.instance.id": replica.replica_id.unique_id,
    }
