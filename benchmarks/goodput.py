"""Requests per second that meet an objective for the time to first token: Skim beside a stock vLLM server.

Both serve the same target on the same cores and live through the whole run; while one is asked, the other is idle. The
objective is a multiple of what an idle dense server takes for one prompt. Arrivals are Poisson, from vLLM's own load
generator, and of one pattern that each rate stretches or squeezes, so that rates and servers are compared on equal
luck. Turn by turn, each server is tried at the next rate of its own search (`benchmarks.knee`).

*Knee*: the largest rate tried at which at least 90 % of the requests got their first token within the objective; a
request without an answer did not. `breaks_at` is the smallest larger rate tried: the true knee lies between the two.
*Goodput* of a point: requests within the objective per second, until the last answer has come, so that a backlog left
at the end counts. The servers' goodputs are those at their knees. A point lasts several objectives, or an overload
would not show; still, with a few dozen requests the knee is that of this pattern.

Skim drafts nothing here: the weights are random, so no draft could be right. Prompts share nothing, and each point has
a cache salt of its own, so that no prefix cache helps.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plots
from benchmarks.knee import SHARE, Point, breaks_at, knee, next_rate
from benchmarks.machine import machine
from benchmarks.progress import Progress, silent
from benchmarks.servers import MODEL, SETTLE_S, skim_config, stock_server
from benchmarks.vllm_load import Load, send
from cluster.serve.deployment import deployed
from kv_transfer.errors import SkimError

SERVERS = ("dense", "skim")

# Prompts that each KV cache holds: more than may wait within the objective.
_PROMPTS_HELD = 8
# Where the search begins, in requests per idle time to first token: near what a queue of one server bears.
_FIRST_LOAD = {"dense": 0.45, "skim": 0.9}
# How long requests arrive, in objectives: an overload of one part in so many still shows.
_WINDOW = 8


@dataclass(frozen=True)
class GoodputSettings:
    """requests: per point, at least. points: rates tried per server. objective: x the idle dense time to first token.

    minutes: no point begins that would likely end later than this after the servers were ready and warm. shapes: of
    the models, in words.
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
    """Measure. `points`: by server and in their order; `knees`: by server, see `summary`. Raises SkimError."""
    began = machine()
    # Prompts travel as text, and may come out a little longer.
    longest = settings.prompt_tokens + settings.prompt_tokens // 8 + 128
    with ExitStack() as stack:
        progress("starting the dense server", 0.0)
        target, speculator = Path(settings.target), Path(settings.speculator)
        dense = stack.enter_context(stock_server(target, longest, _PROMPTS_HELD * longest))
        progress("starting Skim", 0.05)
        config = skim_config(target, speculator, longest, _PROMPTS_HELD * longest, method="none")
        skim = stack.enter_context(deployed(config, progress=lambda line: None))
        measured = _Search(settings, {"dense": dense, "skim": skim}, progress).run()
    names = {"target": Path(settings.target).name, "speculator": Path(settings.speculator).name}
    return {"machine": began, "settings": vars(settings) | names, **measured}


def describe(result: dict[str, Any]) -> str:
    """What was measured, and both knees."""
    settings, idle = result["settings"], result["idle_ms"]
    knees = [f"{server} {_in_words(result['knees'][server])}" for server in SERVERS]
    return (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`{settings['shapes']}, prompts of "
        f"{settings['prompt_tokens']} tokens, keep rate {settings['keep_rate']}, Poisson arrivals, "
        f"{settings['requests']} requests or more per point. Idle, the first token takes {idle['dense']:.0f} ms dense "
        f"and {idle['skim']:.0f} ms with Skim; the objective is {result['objective_ms']:.0f} ms. Knees in requests/s: "
        f"{'; '.join(knees)}.{_compared(result)}"
    )


def _compared(result: Mapping[str, Any]) -> str:
    """Skim's goodput beside dense; where every rate was too much for dense, it has less than the smallest of them."""
    if result["ratio"]:
        return f" Skim's goodput is {result['ratio']:.1f} x dense."
    ours, most = result["knees"]["skim"]["goodput"], result["knees"]["dense"]["breaks_at"]
    return f" Skim's goodput is over {ours / most:.1f} x dense." if ours and most else ""


def _in_words(knee: Mapping[str, float | None]) -> str:
    rate, breaks = knee["rate"], knee["breaks_at"]
    if rate is None:
        return f"under {breaks:.3f}" if breaks else "not tried"
    return f"{rate:.3f} (not {breaks:.3f})" if breaks else f"at least {rate:.3f}"


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one per server and rate."""
    columns = ["server", "requests/s", "in time", "goodput/s", "first token ms", "p90 ms", "failed"]
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
    """By the rate offered: the share of requests within the objective, and the time to first token."""
    with plots.figure(path, result, panels=2, height=3.8) as [shares, times]:
        for server in SERVERS:
            points = sorted(result["points"][server], key=lambda point: point["rate"])
            rates = [point["rate"] for point in points]
            shares.plot(rates, [100 * point["share"] for point in points], label=server)
            times.plot(rates, [point["ttft_p90_ms"] / 1e3 for point in points], label=server)
        shares.axhline(100 * SHARE, color="#555555", linestyle="--", linewidth=1, marker="")
        shares.set(ylabel="% within the objective", ylim=(0, 105), title="Requests that keep the objective")
        times.axhline(result["objective_ms"] / 1e3, color="#555555", linestyle="--", linewidth=1, marker="")
        times.set(ylabel="seconds", ylim=(0, None), title="Time to first token, 90th percentile")
        for axes in (shares, times):
            axes.set(xlabel="requests/s offered", xscale="log")
            axes.legend()


class _Search:
    """The turns of both servers. urls: by server."""

    def __init__(self, settings: GoodputSettings, urls: Mapping[str, str], progress: Progress) -> None:
        self._settings, self._urls, self._progress = settings, urls, progress
        self._load = Load(Path(settings.target), MODEL, settings.prompt_tokens, settings.answer_tokens, settings.seed)
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
                f"no rate could be tried within {self._settings.minutes:g} minutes: give it more (--minutes)"
            )
        knees = {server: summary(points[server]) for server in SERVERS}
        ours, theirs = (knees[server]["goodput"] for server in ("skim", "dense"))
        ratio = ours / theirs if ours and theirs else None
        return {"idle_ms": idle, "objective_ms": objective_ms, "points": points, "knees": knees, "ratio": ratio}

    def _fill_caches(self) -> None:
        """Write every KV cache once; dense prompts fill that of Skim's target."""
        for server, keep_rate in (("dense", None), ("skim", 1.0), ("skim", self._settings.keep_rate)):
            self._progress(f"{server}: filling KV caches", 0.1)
            self._send(server, _PROMPTS_HELD + 1, keep_rate=keep_rate)

    def _idle(self, server: str) -> float:
        """Median time to first token of prompts that come alone, in milliseconds."""
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
        """keep_rate: None for that of the settings."""
        self._salts += 1
        body: dict[str, Any] = {"cache_salt": f"{server}-{self._salts}"}
        if server == "skim":
            body["speculative_prefill"] = {"keep_rate": keep_rate or self._settings.keep_rate}
        result = send(self._load, self._urls[server], requests, body, **how)
        time.sleep(SETTLE_S)
        return result


def summary(points: list[dict[str, Any]]) -> dict[str, float | None]:
    """The knee of one server's points, where it breaks, and the goodput at the knee; None for what was not found."""
    tried = [Point(point["rate"], point["share"]) for point in points]
    rate = knee(tried)
    goodputs = {point["rate"]: point["request_goodput"] for point in points}
    return {"rate": rate, "breaks_at": breaks_at(tried), "goodput": goodputs.get(rate) if rate else None}
