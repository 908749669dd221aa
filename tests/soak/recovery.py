"""From death to served again: a table by victim. `python -m tests.soak.recovery [--engines] [--only PART]`.

It starts one `skim serve` with one replica of each part, kills by SIGKILL, as the kernel does for memory, and asks
without a pause. Mock engines by default; with `--engines`, the demo pair on vLLM, whose target has two ranks.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import ray
import yaml

from benchmarks.report.machine import machine
from cluster.json_file import write_json
from tests.chaos.support.killed import BACK_S, Killed
from tests.chaos.support.whole import BODY
from tests.e2e.conftest import ROOT, skim_serve

CLIENTS = 2
HUNG_AFTER_S = 20


def settings(folder: Path, *, engines: bool) -> dict[str, Any]:
    """A deployment whose models lie in `folder`, with one replica of each part."""
    for pool in ("speculator", "target"):
        shutil.copytree(ROOT / "demo_models" / pool, folder / pool)
    router = {"speculative_prefill": "always", "admission_timeout_s": 5.0, "select_timeout_s": 5.0}
    router |= {"min_prompt_tokens": 1024, "cpus": 0.1}
    selection = {"selector": "speculator"}
    found: dict[str, Any] = {"served_model_name": "skim-demo", "router": router, "selection": selection}
    for pool in ("speculator", "target"):
        found[pool] = {"model": str(folder / pool), "engine": "vllm" if engines else "mock", "cpus_per_replica": 0.1}
        found[pool] |= {"start_timeout_s": 120 if engines else 90, "drain_timeout_s": 5, "hung_after_s": HUNG_AFTER_S}
    if engines:
        demo = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())
        for pool in ("speculator", "target"):
            found[pool] |= {
                key: demo[pool][key] for key in ("engine_options", "env", "start_probe") if key in demo[pool]
            }
        found["target"] |= {"tensor_parallel": 2}
    return found


@dataclass
class Clients:
    """Clients that ask in a loop. answers: (sent, received, status or error, mode), times of time.monotonic.

    refusals: by status, the body of the first answer that was none.
    """

    url: str
    answers: list[tuple[float, float, str, str]] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def asking(self) -> Iterator[None]:
        ended = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(ended,)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def _ask(self, ended: threading.Event) -> None:
        while not ended.wait(0.1):
            sent = time.monotonic()
            try:
                answer = httpx.post(f"{self.url}/v1/chat/completions", json=BODY, timeout=120)
                got = str(answer.status_code), answer.headers.get("x-skim-mode", "")
                if answer.status_code != 200:
                    self.refusals.setdefault(got[0], answer.text[:300])
            except httpx.HTTPError as error:
                got = type(error).__name__, ""
            self.answers.append((sent, time.monotonic(), *got))

    def served_since(self, moment: float) -> float | None:
        """When the first speculative answer came of those that were sent after `moment`."""
        good = [done for sent, done, status, mode in self.answers if sent > moment and mode == "speculative"]
        return min(good, default=None)


def cases(killed: Killed, *, engines: bool) -> dict[str, Callable[[], None]]:
    """By name, what is done to the deployment. The clock starts when it returns."""

    def kill(*parts: str) -> Callable[[], None]:
        return lambda: [killed.kill(part) for part in parts] and None

    def twice(part: str) -> Callable[[], None]:
        return lambda: killed.kill_next(part)

    target = "replica:target"
    if engines:

        def engine(pool: str, word: str) -> Callable[[], None]:
            return lambda: killed.kill_below(f"replica:{pool}", word)

        return {
            "engine process of the speculator": engine("speculator", "EngineCore"),
            "engine process of the target": engine("target", "EngineCore"),
            "one rank of the target": engine("target", "Worker"),
            "speculator replica, its engine left behind": kill("replica:speculator"),
            "target replica, its engine left behind": kill(target),
            "engine process of the speculator, stopped (SIGSTOP)": lambda: killed.stop_below(
                "replica:speculator", "EngineCore"
            ),
            "engine process of the target, stopped (SIGSTOP)": lambda: killed.stop_below(target, "EngineCore"),
            "one rank of the target, stopped (SIGSTOP)": lambda: killed.stop_below(target, "Worker"),
            "engine process of the speculator, at its memory limit for 5 s": lambda: killed.at_limit(
                killed.below("replica:speculator", "EngineCore")
            ),
            "ranks of the target, at their memory limit for 5 s": lambda: killed.at_limit(
                killed.below(target, "Worker")
            ),
            "controller": kill("ServeController"),
            "target replica, and again while it starts": twice(target),
            "target replica, whose first restart fails": lambda: killed.without_model("target", kill(target)),
            "controller and target, whose first restart fails": lambda: killed.without_model(
                "target", kill("ServeController", target)
            ),
        }
    return {
        "target replica": kill(target),
        "speculator replica": kill("replica:speculator"),
        "router replica": kill("replica:router"),
        "controller": kill("ServeController"),
        "proxy": kill("ProxyActor"),
        "target replica, and again while it starts": twice(target),
        "speculator replica, and again while it starts": twice("replica:speculator"),
        "router replica, and again while it starts": twice("replica:router"),
        "controller, and again while it starts": twice("ServeController"),
        "target replica, whose first restart fails": lambda: killed.without_model("target", kill(target)),
        "controller and target, whose first restart fails": lambda: killed.without_model(
            "target", kill("ServeController", target)
        ),
        "controller and router": kill("ServeController", "replica:router"),
        "all replicas and the controller": kill(
            "ServeController", target, "replica:speculator", "replica:router", "ProxyActor"
        ),
        "target replica, whose next start hangs": lambda: killed.with_hanging_start("target"),
        "target replica, at its memory limit for 5 s": lambda: killed.at_limit(killed.find(target)),
        "router replica, at its memory limit for 5 s": lambda: killed.at_limit(killed.find("replica:router")),
    }


def measure(killed: Killed, act: Callable[[], None]) -> dict[str, Any]:
    """Seconds from the end of `act` until a speculative answer, and until all parts have their size."""
    clients = Clients(killed.served.url)
    with clients.asking():
        began = time.monotonic()
        act()
        zero = time.monotonic()
        while (answered := clients.served_since(zero)) is None and time.monotonic() < zero + BACK_S:
            time.sleep(0.05)
        while not (whole := killed.is_whole()) and time.monotonic() < zero + BACK_S:
            time.sleep(0.2)
        at_size = time.monotonic()
    during = Counter(f"{status} {mode}".strip() for _, _, status, mode in clients.answers)
    return {
        "served_s": None if answered is None else round(answered - zero, 1),
        "whole_s": round(at_size - zero, 1) if whole else None,
        "longest_request_s": round(max(done - sent for sent, done, *_ in clients.answers), 1),
        "act_s": round(zero - began, 1),
        "answers": dict(during),
        "refusals": clients.refusals,
        "stopped_left": killed.stopped_left(),
        "left": sorted(
            f"{name}: {part.status}: {part.message[-300:]}" for name, part in killed.parts().items() if not whole
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", action="store_true", help="the demo pair on vLLM")
    parser.add_argument("--only", default="", help="only the cases whose name has this part")
    parser.add_argument("--out", type=Path, help="a file for the result, in JSON")
    asked = parser.parse_args()
    at_start, results = machine(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "serve.yaml"
        config.write_text(yaml.safe_dump(settings(folder, engines=asked.engines)))
        served = skim_serve(config, folder)
        try:
            served.await_ready()
            served.join_ray()
            killed = Killed(served, folder)
            for case, act in cases(killed, engines=asked.engines).items():
                if asked.only not in case:
                    continue
                results[case] = found = measure(killed, act)
                print(f"{case}: {json.dumps(found)}", flush=True)
            ray.shutdown()
        finally:
            print(served.log.read_text())
            served.process.send_signal(signal.SIGINT)
            served.process.wait(timeout=120)
    for line in table(results):
        print(line)
    if asked.out:
        command = "python -m tests.soak.recovery" + (" --engines" if asked.engines else "")
        write_json(asked.out, {"command": command, "machine": at_start, "cases": results})
    return int(any(found["whole_s"] is None or found["stopped_left"] for found in results.values()))


def table(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The results in Markdown."""
    yield "| victim | s to served | s to its size | longest request, s | other answers meanwhile |"
    yield "|---|---|---|---|---|"
    for case, found in results.items():
        others = {answer: count for answer, count in found["answers"].items() if answer != "200 speculative"}
        told = ", ".join(f"{answer} ({count})" for answer, count in others.items()) or "none"
        times = (found[name] for name in ("served_s", "whole_s", "longest_request_s"))
        yield f"| {case} | {' | '.join(map(str, times))} | {told} |"


if __name__ == "__main__":
    sys.exit(main())
