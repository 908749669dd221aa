"""Requests per second that meet an objective for the time to first token: Skim and a stock vLLM server.

Both serve the same target on the same cores and stay up during the whole run; while one gets requests, the other is
idle. The objective is a multiple of the time that an idle dense server takes for one prompt. Arrivals are Poisson and
come from vLLM's load generator. Every rate uses the same random arrival pattern, stretched in time, so chance favours
no rate and no server. The servers take turns; each is tried at the next rate of its own search
(`benchmarks.load.saturation`).

*Saturation rate*: the largest rate tried at which at least 90 % of the requests got their first token within the
objective. A request without an answer counts as late. `breaks_at` is the smallest larger rate tried; the true rate lies
between. *Goodput* of a rate: requests within the objective, divided by the seconds until the last answer, so a backlog
at the end counts. A server's goodput is the one at its saturation rate. A rate is tried for the time of several
objectives, because an overload needs time to show. With a few dozen requests, the saturation rate still depends on the
arrival pattern.

Skim drafts no tokens here: the weights are random, so no draft could be right. Prompts share no prefix and each rate
has its own cache salt, so no prefix cache helps.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.load_generator import Load, send
from benchmarks.harness.servers import MODEL, SETTLE_S, skim_config, stock_server
from benchmarks.load.saturation import SHARE, Point, breaks_at, next_rate, saturation_rate
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from cluster.serve.deployment import deployed
from skim_common.errors import SkimError
from skim_common.models.source import local_folder, public_name

SERVERS = ("dense", "skim")

# Number of prompts that each KV cache holds: more than can wait within the objective.
_PROMPTS_HELD = 8
# First rate of the search, in requests per idle time to first token: near the capacity of one server with a queue.
_FIRST_LOAD = {"dense": 0.45, "skim": 0.9}
# Time during which requests arrive, in objectives: long enough to show an overload of 1/8.
_WINDOW = 8


@dataclass(frozen=True)
class GoodputSettings:
    """requests: smallest number per rate. points: rates to try per server. minutes: a rate is not tried if it would
    probably end later than this; counted from when the servers are warm.

    objective: limit for the time to first token, as a multiple of that of an idle dense server. shapes: what the models
    are, for models of random weights.
    """

    target: str
    speculator: str
    prompt_tokens: int = 4096
    answer_tokens: int = 4
    keep_rate: float = 0.1
    requests: int = 24
    points: int = 3
    objective: float = 2.0
    minutes: float = 7.0
    seed: int = 0
    shapes: str = ""


def run(settings: GoodputSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `points`: the tried rates by server, in order; `saturation`: `summary` by server. Raises SkimError."""
    began = machine()
    # Prompts are sent as text. Tokenized again, they can be a little longer.
    longest = settings.prompt_tokens + settings.prompt_tokens // 8 + 128
    with ExitStack() as stack:
        progress("starting the dense server", 0.0)
        target = Path(local_folder(settings.target, weights=True))
        dense = stack.enter_context(stock_server(target, longest, _PROMPTS_HELD * longest))
        progress("starting Skim", 0.05)
        config = skim_config(target, Path(settings.speculator), longest, _PROMPTS_HELD * longest, method="none")
        skim = stack.enter_context(deployed(config, progress=lambda line: None))
        measured = _Search(settings, {"dense": dense, "skim": skim}, progress).run()
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {"machine": began, "settings": vars(settings) | names, **measured}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, both saturation rates and the ratio of the goodputs."""
    settings, idle = result["settings"], result["idle_ms"]
    # The folders of models of random weights are named by a digest, which tells a reader nothing.
    models = settings["shapes"] or f" `{settings['target']}` and `{settings['speculator']}`"
    rates = [f"{server} {_in_words(result['saturation'][server])}" for server in SERVERS]
    return (
        f"Target and speculator{models}, prompts of {settings['prompt_tokens']} tokens, keep rate "
        f"{settings['keep_rate']}, Poisson arrivals, at least {settings['requests']} requests per rate. When idle, "
        f"dense vLLM takes {idle['dense']:.0f} ms to the first token and Skim {idle['skim']:.0f} ms. The objective for "
        f"the first token is {result['objective_ms']:.0f} ms. Largest rate at which {SHARE:.0%} of the requests meet "
        f"it, in requests/s: {'; '.join(rates)}.{_compared(result)}"
    )


def _compared(result: Mapping[str, Any]) -> str:
    """Skim's goodput relative to dense. If dense met no rate, its goodput is below the smallest rate tried."""
    if result["ratio"]:
        return f" Skim's goodput is {result['ratio']:.1f} x dense."
    ours, most = result["saturation"]["skim"]["goodput"], result["saturation"]["dense"]["breaks_at"]
    return f" Skim's goodput is over {ours / most:.1f} x dense." if ours and most else ""


def _in_words(found: Mapping[str, float | None]) -> str:
    rate, breaks = found["rate"], found["breaks_at"]
    if rate is None:
        return f"under {breaks:.3f}" if breaks else "not tried"
    return f"{rate:.3f} ({breaks:.3f} is too high)" if breaks else f"at least {rate:.3f}"


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per server and rate."""
    columns = ["server", "requests/s", "within objective", "goodput, requests/s"]
    columns += ["median first token ms", "p90 first token ms", "failed"]
    rows = [
        [
            server,
            f"{point['rate']:.3f}",
            f"{point['share']:.0%} of {point['requests']}",
            f"{point['request_goodput']:.3f}",
            f"{point['ttft_median_ms']:.0f}",
            f"{point['ttft_p90_ms']:.0f}",
            str(point["failed"]),
        ]
        for server in SERVERS
        for point in sorted(result["points"][server], key=lambda point: point["rate"])
    ]
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: share of requests within the objective, by request rate. Right: time to first token, by request rate."""
    with plots.figure(path, result, panels=2, height=3.8) as [shares, times]:
        for server in SERVERS:
            points = sorted(result["points"][server], key=lambda point: point["rate"])
            rates = [point["rate"] for point in points]
            shares.plot(rates, [100 * point["share"] for point in points], label=server)
            times.plot(rates, [point["ttft_p90_ms"] / 1e3 for point in points], label=server)
        shares.axhline(100 * SHARE, color="#555555", linestyle="--", linewidth=1, marker="")
        shares.set(ylabel="% within the objective", ylim=(0, 105), title="Requests within the objective")
        times.axhline(result["objective_ms"] / 1e3, color="#555555", linestyle="--", linewidth=1, marker="")
        times.set(ylabel="seconds", ylim=(0, None), title="Time to first token, 90th percentile")
        for axes in (shares, times):
            axes.set(xlabel="requests/s offered", xscale="log")
            axes.legend()


class _Search:
    """The search for both servers' saturation rates, in turns. urls: base URLs by server."""

    def __init__(self, settings: GoodputSettings, urls: Mapping[str, str], progress: Progress) -> None:
        self._settings, self._urls, self._progress = settings, urls, progress
        tokenizer = Path(local_folder(settings.target, weights=False))
        self._load = Load(tokenizer, MODEL, settings.prompt_tokens, settings.answer_tokens, settings.seed)
        self._salts = 0

    def run(self) -> dict[str, Any]:
        self._fill_caches()
        idle = {server: self._idle(server) for server in SERVERS}
        objective_ms = self._settings.objective * idle["dense"]
        until = time.monotonic() + 60 * self._settings.minutes
        points: dict[str, list[dict[str, Any]]] = {server: [] for server in SERVERS}
        turns = [server for _ in range(self._settings.points) for server in SERVERS]
        for index, server in enumerate(turns):
            tried = [Point(point["rate"], point["share"]) for point in points[server]]
            rate = next_rate(tried, _FIRST_LOAD[server] / (idle[server] / 1e3))
            requests = max(self._settings.requests, round(rate * _WINDOW * objective_ms / 1e3))
            if time.monotonic() + requests / rate > until:
                continue
            self._progress(f"{server}: {requests} requests, {rate:.2f}/s", 0.2 + 0.8 * index / len(turns))
            points[server].append(self._point(server, rate, requests, objective_ms))
        if not all(points.values()):
            raise SkimError(
                f"no rate could be tried within {self._settings.minutes:g} minutes: allow more time (--minutes)"
            )
        found = {server: summary(points[server]) for server in SERVERS}
        ours, theirs = (found[server]["goodput"] for server in ("skim", "dense"))
        ratio = ours / theirs if ours and theirs else None
        return {"idle_ms": idle, "objective_ms": objective_ms, "points": points, "saturation": found, "ratio": ratio}

    def _fill_caches(self) -> None:
        """Fill every KV cache once (see `benchmarks.harness.servers`); prompts with keep rate 1 fill that of Skim's
        target."""
        for server, keep_rate in (("dense", None), ("skim", 1.0), ("skim", self._settings.keep_rate)):
            self._progress(f"{server}: filling KV caches", 0.1)
            self._send(server, _PROMPTS_HELD + 1, keep_rate=keep_rate)

    def _idle(self, server: str) -> float:
        """Median time to first token of single prompts on the idle server, in milliseconds."""
        self._progress(f"{server}: one request at a time", 0.15)
        return 1e3 * float(np.median(self._send(server, 3)["ttfts"]))

    def _point(self, server: str, rate: float, requests: int, objective_ms: float) -> dict[str, Any]:
        result = self._send(server, requests, rate=rate, objective_ms=objective_ms)
        met = round(result["request_goodput"] * result["duration"])
        return {
            "rate": rate,
            "requests": requests,
            "failed": result["failed"],
            "share": met / requests,
            "request_goodput": result["request_goodput"],
            "ttft_median_ms": result["median_ttft_ms"],
            "ttft_p90_ms": result["p90_ttft_ms"],
            "duration_s": result["duration"],
        }

    def _send(self, server: str, requests: int, *, keep_rate: float | None = None, **how: float) -> dict[str, Any]:
        """Send the requests with a new cache salt. keep_rate: None takes the one in the settings."""
        self._salts += 1
        body: dict[str, Any] = {"cache_salt": f"{server}-{self._salts}"}
        if server == "skim":
            body["speculative_prefill"] = {"enabled": "always", "keep_rate": keep_rate or self._settings.keep_rate}
        result = send(self._load, self._urls[server], requests, body, **how)
        time.sleep(SETTLE_S)
        return result


def summary(points: list[dict[str, Any]]) -> dict[str, float | None]:
    """One server's saturation rate (`rate`), the smallest larger rate tried (`breaks_at`), and the goodput at `rate`.

    None stands for what was not found.
    """
    tried = [Point(point["rate"], point["share"]) for point in points]
    rate = saturation_rate(tried)
    goodputs = {point["rate"]: point["request_goodput"] for point in points}
    return {"rate": rate, "breaks_at": breaks_at(tried), "goodput": goodputs.get(rate) if rate else None}
