"""From death to served again: a table by victim. `python -m tests.chaos.recovery [--engines] [--only PART]`.

It starts one `skim serve` with one replica of each part, kills by SIGKILL, as the kernel does for memory, and asks
without a pause. Mock engines by default; with `--engines`, the demo pair on vLLM, whose target has two ranks.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import ray
import yaml
from ray import serve

from cluster.commands.demo_document import make_document
from cluster.serve.app import APP_NAME
from tests.e2e.conftest import ROOT, Served, skim_serve

BACK_S = 300
CLIENTS = 2
BODY = {"model": "skim-demo", "messages": make_document(1500, 1).messages, "max_tokens": 2}


def settings(folder: Path, *, engines: bool) -> dict[str, Any]:
    """A deployment whose models lie in `folder`, with one replica of each part."""
    for pool in ("speculator", "target"):
        shutil.copytree(ROOT / "demo_models" / pool, folder / pool)
    router = {"speculative_prefill": True, "admission_timeout_s": 5.0, "select_timeout_s": 5.0}
    found: dict[str, Any] = {"served_model_name": "skim-demo", "router": {**router, "cpus": 0.1}}
    for pool in ("speculator", "target"):
        found[pool] = {"model": str(folder / pool), "engine": "vllm" if engines else "mock", "cpus_per_replica": 0.1}
        found[pool] |= {"start_timeout_s": 120 if engines else 90, "drain_timeout_s": 5}
    if engines:
        demo = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())
        for pool in ("speculator", "target"):
            found[pool] |= {key: demo[pool][key] for key in ("engine_options", "env") if key in demo[pool]}
        found["target"] |= {"tensor_parallel": 2}
    return found


@dataclass
class Clients:
    """Clients that ask in a loop. answers: (sent, received, status or error, mode), times of time.monotonic."""

    url: str
    answers: list[tuple[float, float, str, str]] = field(default_factory=list)

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
            except httpx.HTTPError as error:
                got = type(error).__name__, ""
            self.answers.append((sent, time.monotonic(), *got))

    def served_since(self, moment: float) -> float | None:
        """When the first speculative answer came of those that were sent after `moment`."""
        good = [done for sent, done, status, mode in self.answers if sent > moment and mode == "speculative"]
        return min(good, default=None)


class Killed:
    """A `skim serve` and its parts as processes."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.folder = served, folder

    def find(self, part: str) -> list[psutil.Process]:
        """The processes of a part: a word of their command line. Replicas: `replica:NAME`."""
        word = part.replace("replica:", "ServeReplica:skim:")
        found = []
        for process in psutil.Process(self.served.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if word in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def below(self, part: str, word: str) -> list[psutil.Process]:
        """The processes of an engine: below the replica of a part."""
        [replica] = self.find(part)
        return [p for p in replica.children(recursive=True) if word in " ".join(p.cmdline()) or word in p.name()]

    def kill(self, part: str) -> None:
        processes = self.find(part)
        assert processes, f"no process of {part}"
        for process in processes:
            process.kill()

    def kill_next(self, part: str) -> None:
        """Kill the successor while it starts."""
        before = {process.pid for process in self.find(part)}
        self.kill(part)
        deadline = time.monotonic() + BACK_S
        while not (new := [p for p in self.find(part) if p.pid not in before]):
            assert time.monotonic() < deadline, f"no successor of {part}"
            time.sleep(0.05)
        for process in new:
            process.kill()

    def without_model(self, pool: str, act: Callable[[], None]) -> None:
        """`act`, and the next start fails, because the model's folder is away."""
        away = (self.folder / pool).rename(self.folder / "away")
        act()
        self.await_message(pool, "does not exist")
        away.rename(self.folder / pool)

    def with_hanging_start(self, pool: str) -> None:
        """Kill the pool; its successor reads a file that never ends. The next one after it can read it."""
        config = self.folder / pool / "config.json"
        text = config.read_bytes()
        config.unlink()
        os.mkfifo(config)
        before = {process.pid for process in self.find(f"replica:{pool}")}
        self.kill(f"replica:{pool}")
        while not [p for p in self.find(f"replica:{pool}") if p.pid not in before]:
            time.sleep(0.1)
        time.sleep(5)
        config.unlink()
        config.write_bytes(text)

    def await_message(self, pool: str, text: str) -> None:
        deadline = time.monotonic() + BACK_S
        while text not in self.parts()[pool].message:
            assert time.monotonic() < deadline, self.parts()
            time.sleep(0.2)

    def parts(self) -> dict[str, Any]:
        """Serve's state of each deployment; empty while its controller is away."""
        with suppress(Exception):
            return dict(serve.status().applications[APP_NAME].deployments)
        return {}

    def is_whole(self) -> bool:
        parts = self.parts()
        return bool(parts) and all(part.status == "HEALTHY" for part in parts.values())


def cases(killed: Killed, *, engines: bool) -> dict[str, Callable[[], None]]:
    """By name, what is done to the deployment. The clock starts when it returns."""

    def kill(*parts: str) -> Callable[[], None]:
        return lambda: [killed.kill(part) for part in parts] and None

    def twice(part: str) -> Callable[[], None]:
        return lambda: killed.kill_next(part)

    def signal_to(part: str, number: signal.Signals) -> Callable[[], None]:
        return lambda: [process.send_signal(number) for process in killed.find(part)] and None

    if engines:

        def engine(pool: str, word: str) -> Callable[[], None]:
            return lambda: [process.kill() for process in killed.below(f"replica:{pool}", word)[:1]] and None

        return {
            "engine process of the speculator": engine("speculator", "EngineCore"),
            "engine process of the target": engine("target", "EngineCore"),
            "one rank of the target": engine("target", "Worker"),
            "target replica, its engine left behind": kill("replica:target"),
            "target replica, twice in a row": twice("replica:target"),
        }
    target = "replica:target"
    return {
        "target replica": kill(target),
        "speculator replica": kill("replica:speculator"),
        "router replica": kill("replica:router"),
        "controller": kill("ServeController"),
        "proxy": kill("HAProxyManager"),
        "HAProxy": kill("haproxy -"),
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
            "ServeController", target, "replica:speculator", "replica:router", "HAProxyManager"
        ),
        "target replica, whose next start hangs": lambda: killed.with_hanging_start("target"),
        "target replica, stopped (SIGSTOP)": signal_to(target, signal.SIGSTOP),
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
        "left": sorted(
            f"{name}: {part.status}: {part.message[-300:]}" for name, part in killed.parts().items() if not whole
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", action="store_true", help="the demo pair on vLLM")
    parser.add_argument("--only", default="", help="only the cases whose name has this part")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results = {}
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
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(found["whole_s"] is None for found in results.values()))


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
