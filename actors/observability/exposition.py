"""The metrics of one process in Prometheus' text format, for the `/metrics` of the endpoint.

A replica tells them to the router that is asked, which puts all replicas together (`router.vllm_front.metrics`).
Gauges travel as numbers: the router makes one of those of all replicas. Counters and histograms travel as text with a
label that names the replica, as vLLM's label `engine` names the engines of one server. Their sum over replicas would
fall when a replica goes, and Prometheus would take that for a restart of all of them and count everything again.
"""

from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import NamedTuple

from prometheus_client import Metric, generate_latest

from actors.ray_hooks.serve import this_replica

VLLM = "vllm:"
"""The prefix of vLLM's names."""

OF_CLIENTS = {
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:prompt_tokens",
    "vllm:request_prompt_tokens",
}
"""vLLM's metrics of what a client sends and waits for. A target engine sees the kept tokens and a part of the wait, so
the routers count these."""

QUEUES = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"}
"""vLLM's gauges of requests that an engine, or a router before it, has at this moment."""

Labels = tuple[tuple[str, str], ...]


class Exposition(NamedTuple):
    """What one replica tells. counts: lines by their header of HELP and TYPE. gauges: name, text, labels and value."""

    replica: str
    counts: dict[str, str]
    gauges: list[tuple[str, str, Labels, float]]


def expose(families: Iterable[Metric], model_name: str) -> Exposition:
    """The families of this process. model_name: replaces vLLM's label, which is a path in a pool."""
    serving = this_replica()
    replica = serving.replica_id.unique_id if serving else "local"
    counts, gauges = [], []
    for family in families:
        if family.type == "gauge":
            labelled = ((_of_model(sample.labels, model_name), sample.value) for sample in family.samples)
            gauges += [(family.name, family.documentation, tuple(sorted(own.items())), v) for own, v in labelled]
        else:
            counts.append(_of_replica(family, replica, model_name))
    return Exposition(replica, _by_header(exposed(counts)), gauges)


def exposed(families: Iterable[Metric]) -> str:
    """The families in Prometheus' text format."""
    return generate_latest(SimpleNamespace(collect=lambda: families)).decode()


def named(families: Iterable[Metric], names: Collection[str]) -> list[Metric]:
    """The families with these names."""
    return [family for family in families if family.name in names]


def _of_model(labels: dict[str, str], model_name: str) -> dict[str, str]:
    return {**labels, "model_name": model_name} if "model_name" in labels else labels


def _of_replica(family: Metric, replica: str, model_name: str) -> Metric:
    """The family with a label for the replica in each sample: `engine` for vLLM's, `replica` for others."""
    label = "engine" if family.name.startswith(VLLM) else "replica"
    own = Metric(family.name, family.documentation, family.type)
    for sample in family.samples:
        part = sample.labels.get(label, "0")  # not "0": an engine of several in the replica
        labels = {**_of_model(sample.labels, model_name), label: replica if part == "0" else f"{replica}-{part}"}
        own.samples.append(sample._replace(labels=labels))
    return own


def _by_header(text: str) -> dict[str, str]:
    blocks = (block.split("\n", 2) for block in text.split("# HELP ")[1:])
    return {f"# HELP {help}\n{kind}\n": lines for help, kind, lines in blocks}
