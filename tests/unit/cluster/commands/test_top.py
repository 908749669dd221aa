"""`skim top` over the merged metrics of an endpoint."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from actors.observability.metric_table import METRICS
from cluster.commands.top import Scrape, _quantiles, figures, page, read_metrics
from cluster.serve.preflight import free_port
from skim_common.errors import SkimError

CLASSES = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class Endpoint:
    """The metrics of a deployment, by the names and labels of the table; two routers, `a` and `b`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = {}

    def of(self, name, router="a", **labels):
        if name not in self.metrics:
            metric = METRICS[name]
            more = {"buckets": metric.buckets} if metric.kind == "histogram" else {}
            tags = (*metric.tags, *(() if metric.kind == "gauge" else ("replica",)))
            self.metrics[name] = CLASSES[metric.kind](name, metric.text, tags, registry=self.registry, **more)
        own = labels if METRICS[name].kind == "gauge" else {**labels, "replica": router}
        return self.metrics[name].labels(**own) if own else self.metrics[name]

    def text(self) -> str:
        return generate_latest(self.registry).decode()


@pytest.fixture
def texts():
    """Two readings, between which there are 8 speculative prompts and 2 dense ones."""
    endpoint = Endpoint()
    for state in ("configured", "running"):
        endpoint.of("skim_router_pool_replicas", pool="target", state=state).set(2)
    endpoint.of("skim_router_queued").set(3)
    endpoint.of("skim_router_requests_total", mode="speculative", reason="requested").inc(100)
    endpoint.of("skim_router_prompt_tokens_total", mode="speculative").inc(1e6)
    first = endpoint.text()
    for router in "ab":
        endpoint.of("skim_router_requests_total", router, mode="speculative", reason="requested").inc(4)
        endpoint.of("skim_router_prompt_tokens_total", router, mode="speculative").inc(4000)
        endpoint.of("skim_router_kept_tokens_total", router, mode="speculative").inc(1000)
        for seconds in (0.2, 0.2, 0.2, 2.0):
            endpoint.of("skim_router_ttft_seconds", router, mode="speculative", part="total").observe(seconds)
            endpoint.of("skim_router_ttft_seconds", router, mode="speculative", part="queue").observe(50)
    endpoint.of("skim_router_requests_total", mode="dense", reason="short").inc(2)
    endpoint.of("skim_router_cached_tokens_total", mode="speculative").inc(500)
    endpoint.of("skim_target_rounds_total").inc(10)
    endpoint.of("skim_target_drafts_total").inc(40)
    endpoint.of("skim_target_accepted_total").inc(20)
    return first, endpoint.text()


@contextmanager
def answering(*texts: str, path: str = "/metrics") -> Iterator[str]:
    """The address of an endpoint that gives these texts, the last one again and again."""
    left = list(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(200 if self.path == path else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_one_page_for_scripts(skim, texts):
    with answering(*texts) as url:
        ran = skim("top", url, "--once", "--json", "--interval", 1)
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    per_s = 1 / found["over_s"]
    assert found["prompts_per_s"] == pytest.approx({"speculative": 8 * per_s, "dense": 2 * per_s})
    assert found["dense_per_s"] == pytest.approx({"short": 2 * per_s})
    assert found["replicas"] == found["replicas_configured"] == {"target": 2}
    assert (found["queued"], found["sessions"]) == (3, None)
    assert (found["kept_share"], found["cached_share"]) == (0.25, 0.25)
    assert (found["accepted_share"], found["tokens_per_verification"]) == (0.5, 3)
    assert 0.1 < found["first_token_median_s"]["speculative"] <= 0.25
    assert 1.0 < found["first_token_90_s"]["speculative"] <= 2.5


def test_one_page_for_people(skim, texts):
    with answering(*texts) as url:
        ran = skim("top", f"{url}/v1", "--once", "--interval", 1)
    assert ran.code == 0
    assert re.search(r"^prompts +speculative [\d.]+/s, dense [\d.]+/s", ran.out, re.M)
    assert re.search(r"^kept +25 %", ran.out, re.M)
    assert re.search(r"^first token median +speculative \d+ ms", ran.out, re.M)
    assert re.search(r"^sessions +-", ran.out, re.M)


def reading(at: float, **counts: float) -> Scrape:
    return Scrape(at, {"skim_router_refused_total": [({"reason": r}, n) for r, n in counts.items()]})


def test_a_counter_that_began_again_counts_from_zero():
    found = figures(reading(0, full=100, wait=5), reading(10, full=20, wait=5, deadline=10))
    assert found["refused_per_s"] == {"full": 2.0, "deadline": 1.0}


def test_quantiles_are_prometheus_ones():
    def of(**counts):
        buckets = [({"le": le.replace("_", ".").replace("inf", "+Inf")}, n) for le, n in counts.items()]
        return Scrape(0, {"x_bucket": buckets, "x_count": [({}, max(counts.values()))]})

    assert _quantiles(of(**{"1": 10, "2": 20, "inf": 20}), "x", 0.75) == {"": 1.5}
    assert _quantiles(of(**{"1": 10, "2": 20, "inf": 20}), "x", 0.25) == {"": 0.5}
    assert _quantiles(of(**{"1": 1, "2": 2, "inf": 20}), "x", 0.9) == {"": 2.0}
    assert _quantiles(of(**{"1": 0, "inf": 0}), "x", 0.5) == {}


def test_old_values_are_called_old(capsys):
    from rich.console import Console

    Console().print(page(figures(reading(0), reading(1)), 1.0, trouble="the endpoint is away; these values are old"))
    assert "these values are old" in capsys.readouterr().out


def test_who_gives_no_metrics_is_named(skim):
    nobody = f"http://127.0.0.1:{free_port()}"
    ran = skim("top", nobody, "--once")
    assert ran.code == 2
    assert f"the endpoint {nobody} gave no metrics" in ran.error
    with answering("up 1\n") as url, pytest.raises(SkimError, match=r"has no metrics of Skim$"):
        read_metrics(url)
    with answering("up 1\n", path="/other") as url, pytest.raises(SkimError, match="404"):
        read_metrics(url)
    with answering("no metrics {\n") as url, pytest.raises(SkimError, match="gave no metrics"):
        read_metrics(url)


def test_json_without_once_is_refused(skim):
    ran = skim("top", "--json")
    assert (ran.code, ran.error) == (2, "skim: --json prints one page: add --once")
