"""The endpoint's metrics: those of vLLM's own loggers in two target replicas and of a router, as one deployment's."""

import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

from actors.observability import exposition
from actors.observability.exposition import OF_CLIENTS, Exposition, exposed
from actors.observability.metric_table import METRICS
from router.admission.controller import Admission
from router.vllm_front.metrics import DeploymentMetrics, FrontMetrics, merged_metrics, stat_logger
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.actors.mock_actors import target
from tests.unit.conftest import MODELS

FOLDER = str(MODELS / "target")


@pytest.fixture(scope="module")
def config():
    return AsyncEngineArgs(model=FOLDER, dtype="float32").create_engine_config()


class Engine:
    """What a target's engine records, by vLLM's own logger, in a registry of its own."""

    def __init__(self, config):
        self.registry = CollectorRegistry()
        self.logger = stat_logger(config, self.registry)
        self.logger.log_engine_initialized()

    def answers(self, requests, tokens):
        """Count requests that ended, each with so many tokens after the first one of its prompt."""
        for _ in range(requests):
            step = IterationStats()
            step.num_generation_tokens = tokens
            step.prompt_token_stats.total = 7
            step.time_to_first_tokens_iter.append(0.01)
            step.finished_requests.append(FinishedRequestStats(FinishReason.STOP, num_generation_tokens=tokens))
            self.logger.record(None, step)

    def holds(self, running, waiting, usage):
        state = SchedulerStats(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=usage)
        self.logger.record(state, None)


def named_replica(name):
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name))


@pytest.fixture
def told(monkeypatch):
    """What the replica `name` tells of `engine`, as a target, or as the half of a split one."""

    async def tell(name, engine, **options):
        monkeypatch.setattr(exposition, "this_replica", lambda: named_replica(name))
        actor = await target(**options)
        monkeypatch.setattr(actor._engine, "metric_families", engine.registry.collect)
        return await actor.metrics("demo")

    return tell


@pytest.fixture
def router(config, monkeypatch):
    """A router's FrontMetrics and what it tells."""
    front = FrontMetrics(config, "demo", Admission(LocalMeter()))

    def tell(name="router-1"):
        monkeypatch.setattr(exposition, "this_replica", lambda: named_replica(name))
        return front.exposition()

    return SimpleNamespace(front=front, tell=tell)


def read(text):
    """The samples of a text by name: pairs of labels and value."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def total(samples, name, **labels):
    return sum(value for own, value in samples[name] if labels.items() <= own.items())


def vllm_names(text):
    return {name for name in read(text) if name.startswith("vllm:")}


async def test_the_names_are_those_of_stock_vllm(config, told, router):
    """Negative control: without the router's part, what clients see is missing."""
    PrometheusStatLogger(config).log_engine_initialized()
    stock = vllm_names(exposed(REGISTRY.collect()))
    unregister_vllm_metrics()
    assert len(stock) > 80
    engine = await told("target-1", Engine(config))
    assert vllm_names(merged_metrics([engine, router.tell()])) == stock
    missing = stock - vllm_names(merged_metrics([engine]))
    assert missing
    assert all(name.startswith(tuple(OF_CLIENTS)) for name in missing)


async def test_two_replicas_count_together(config, told, router):
    one, two = Engine(config), Engine(config)
    one.answers(3, tokens=5)
    two.answers(4, tokens=2)
    samples = read(merged_metrics([await told("a", one), await told("b", two), router.tell()]))
    assert total(samples, "vllm:request_success_total", finished_reason="stop") == 7
    assert total(samples, "vllm:generation_tokens_total") == 23
    assert {labels["engine"] for labels, _ in samples["vllm:generation_tokens_total"]} == {"a", "b"}
    assert total(samples, "vllm:request_generation_tokens_bucket", le="2.0") == 4
    assert total(samples, "vllm:request_generation_tokens_count") == 7


async def test_one_gauge_is_made_of_those_of_all(config, told, router):
    one, two = Engine(config), Engine(config)
    one.holds(3, 2, usage=0.5)
    two.holds(4, 0, usage=0.25)
    samples = read(merged_metrics([await told("a", one), await told("b", two), router.tell()]))
    labels = {"engine": "0", "model_name": "demo"}
    assert samples["vllm:num_requests_running"] == [(labels, 7.0)]
    assert samples["vllm:num_requests_waiting"] == [(labels, 2.0)]
    assert samples["vllm:kv_cache_usage_perc"] == [(labels, 0.375)]
    assert [value for _, value in samples["vllm:cache_config_info"]] == [1.0]
    assert total(samples, "vllm:engine_sleep_state", sleep_state="awake") == 1


async def test_no_counter_falls_when_a_replica_goes(config, told, router):
    """A series keeps its value or ends. Their sum falls, which Prometheus would take for a restart of all."""
    one, two = Engine(config), Engine(config)
    one.answers(3, tokens=5)
    two.answers(4, tokens=2)
    before = read(merged_metrics([await told("a", one), await told("b", two), router.tell()]))
    after = read(merged_metrics([await told("b", two), router.tell()]))

    def counters(samples):
        return {
            (name, *sorted(own.items())): value for name in samples if "_total" in name for own, value in samples[name]
        }

    left, right = counters(before), counters(after)
    assert right.keys() < left.keys()
    assert all(right[key] == left[key] for key in right)
    assert total(after, "vllm:generation_tokens_total") < total(before, "vllm:generation_tokens_total")


async def test_what_clients_see_is_the_routers(config, told, router):
    """The engine saw 7 kept tokens and a part of the wait; the client sent 1000 and waited for 2 seconds."""
    engine = Engine(config)
    engine.answers(1, tokens=5)
    router.front.began(1000, 2.0)
    router.front.ended(1000, 3.0)
    other = router.tell("router-2")._replace(gauges=[])
    samples = read(merged_metrics([await told("a", engine), router.tell(), other]))
    assert total(samples, "vllm:prompt_tokens_total") == 2000, "of both routers"
    assert total(samples, "vllm:prompt_tokens_total", engine="router-1") == 1000
    assert total(samples, "vllm:time_to_first_token_seconds_sum", engine="router-1") == 2
    assert total(samples, "vllm:time_to_first_token_seconds_count", engine="router-1") == 1
    assert total(samples, "vllm:e2e_request_latency_seconds_sum", engine="router-1") == 3
    assert total(samples, "vllm:request_prompt_tokens_sum", engine="router-1") == 1000
    assert total(samples, "vllm:request_success_total") == 1, "the router's own logger counts no answers"


async def test_the_prefill_half_tells_its_queue_alone(config, told):
    half = Engine(config)
    half.answers(3, tokens=1)
    half.holds(2, 1, usage=0.9)
    names = vllm_names(merged_metrics([await told("p", half, kv_role="prefill")]))
    queues = ("running", "waiting", "waiting_by_reason")
    assert names == {f"vllm:num_requests_{queue}" for queue in queues}


async def test_what_waits_in_a_router_is_waiting(config, told, router, monkeypatch):
    engine = Engine(config)
    engine.holds(1, 2, usage=0.0)
    monkeypatch.setattr(Admission, "queued", 5)
    monkeypatch.setattr(Admission, "reading", 3)
    samples = read(merged_metrics([await told("a", engine), router.tell()]))
    assert total(samples, "vllm:num_requests_waiting") == 7
    assert total(samples, "vllm:num_requests_waiting_by_reason", reason="capacity") == 7
    assert total(samples, "vllm:num_requests_running") == 4


async def test_no_path_is_told(config, told, router):
    text = merged_metrics([await told("a", Engine(config)), router.tell()])
    assert FOLDER not in text
    assert 'model_name="demo"' in text


def test_skims_gauges_are_merged_by_the_table():
    told = [
        Exposition(name, {}, [(metric, "text", (), value) for metric in METRICS])
        for name, value in (("a", 1.0), ("b", 3.0))
    ]
    samples = read(merged_metrics(told))
    assert samples["skim_router_queued"] == [({}, 4.0)]
    assert samples["skim_router_pool_replicas"] == [({}, 3.0)]
    assert samples["skim_target_acceptance"] == [({}, 2.0)]


async def test_who_asks_at_the_same_time_shares_an_answer():
    asked = 0

    async def ask():
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return [Exposition("a", {}, [("skim_router_queued", "text", (), float(asked))])]

    metrics = DeploymentMetrics(ask)
    texts = await asyncio.gather(*(metrics.text() for _ in range(20)), return_exceptions=True)
    assert len(set(texts)) == 1
    assert asked == 1
    metrics._answered_at -= 60.0
    assert read(await metrics.text())["skim_router_queued"] == [({}, 2.0)]
