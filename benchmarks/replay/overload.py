"""Goodput under overload, against mock engines in virtual time: with admission and without it.

Goodput is the number of requests per second whose whole answer arrives before its deadline. Each request has the same
deadline, as a client with a timeout has. Without admission, the deadline still stops a late request in both pools, as a
client that hangs up does. Arrivals are Poisson with the same pattern at every rate, stretched in time.

Real: the router's dispatcher with admission, forecasts and shedding, the selection, the messages. Modelled: the time of
the engines (`benchmarks.replay.cost_profiles`), which compute one prompt after the other. Not there: HTTP and Ray, the
effect of decoding on prefills, and the time that the router computes; `skim bench overhead` measures that.
"""

import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.models import random_prompt
from benchmarks.replay.cost_profiles import PROFILES, Profile
from benchmarks.replay.simulation import MockPools, Unmetered
from benchmarks.replay.virtual_time import run as run_in_virtual_time
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from kv_transfer.sampling import DELTA
from router.admission.controller import Admission
from router.admission.ticket import OverloadedError
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState
from router.options.request import PREFILL, PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.prompt.rendered import RenderedPrompt
from skim_common.deadline import Deadline
from skim_common.errors import DeadlineError

SYSTEMS = ("admission", "none")
LOADS = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
"""Request rates as multiples of the sustainable one."""
WARM_UP_S = 20.0
"""Requests that arrive before this time teach the router; they are not counted."""


@dataclass(frozen=True, slots=True)
class OverloadSettings:
    """profile: a key of PROFILES. prompt_tokens: the median length; lengths are log-normal with `spread`. deadline_s:
    of each request. seconds: virtual time of each rate, after the warm-up. replicas: of each pool.
    """

    profile: str = "70b+8b"
    prompt_tokens: int = 6000
    spread: float = 0.5
    answer_tokens: int = 32
    keep_rate: float = 0.2
    deadline_s: float = 5.0
    seconds: float = 30.0
    replicas: int = 2
    seed: int = 0


class _Skim:
    """One deployment with its router. admits: with limits; without, every request is accepted."""

    def __init__(self, settings: OverloadSettings, profile: Profile, *, admits: bool) -> None:
        # Options of the deployment: no request has a wish of its own.
        self._settings = settings
        self._options = PREFILL.resolve(PrefillOptions(keep_rate=settings.keep_rate), None, None)
        self._decode = SpeculationOptions(method="none")
        admission = Admission(Unmetered(), max_wait_s=60.0) if admits else _Open(Unmetered())
        self._dispatcher = Dispatcher(
            MockPools.of(profile, settings.replicas),
            self._options,
            self._decode,
            RouterConfig(select_timeout_s=3600, guard=False),
            Unmetered(),
            admission,
        )

    async def ask(self, number: int, ids: list[int]) -> str:
        """How the request ended: met, refused or missed."""
        context = CallState(
            Request(self._options, self._decode.decode, deadline=Deadline.after(1e3 * self._settings.deadline_s))
        )
        sampling = {
            "max_tokens": self._settings.answer_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "output_kind": DELTA,
        }
        prompt = Prompt(RenderedPrompt(np.array(ids, np.int32)), sampling, self._settings.answer_tokens)
        try:
            async with aclosing(self._dispatcher.run(str(number), prompt, context)) as outputs:
                async for _ in outputs:
                    pass
        except OverloadedError:
            return "refused"
        except DeadlineError:
            return "missed"
        return "met"


class _Open(Admission):
    """An admission that takes everything at once."""

    def _check(self, claim: Any, work: Any) -> float:
        return 0.0

    def _check_deadline(self, claim: Any, work: Any, wait_ms: float) -> None: ...

    def _fits(self, place: Any) -> bool:
        return True


def run(settings: OverloadSettings, progress: Progress = silent) -> dict[str, Any]:
    """`points`: by system, what became of the requests at each rate. `ratio`: by system, the goodput at three times the
    sustainable rate, divided by the best one."""
    profile = PROFILES[settings.profile]
    sustainable = _sustainable(settings, profile)
    points: dict[str, list[dict[str, Any]]] = {system: [] for system in SYSTEMS}
    for number, load in enumerate(LOADS):
        for system in SYSTEMS:
            progress(f"{system}: {load:g} times the sustainable rate", number / len(LOADS))
            skim = _Skim(settings, profile, admits=system == "admission")
            ends = run_in_virtual_time(_offer(skim, settings, load * sustainable))
            points[system].append({"load": load, "rate": load * sustainable, **ends})
    ratio = {system: _at(points[system], 3.0) / _best(points[system]) for system in SYSTEMS}
    settings_told = {name: getattr(settings, name) for name in settings.__slots__}
    return {
        "machine": machine(),
        "settings": settings_told,
        "sustainable": sustainable,
        "points": points,
        "ratio": ratio,
    }


def describe(result: dict[str, Any]) -> str:
    """The conditions of the simulation, and the goodput at three times the sustainable rate."""
    settings, ratio = result["settings"], result["ratio"]
    return (
        f"Simulated in virtual time: {settings['replicas']} replicas of each pool, as long as a pair of profile "
        f"`{settings['profile']}` takes; prompts of about {settings['prompt_tokens']} tokens, keep rate "
        f"{settings['keep_rate']}, Poisson arrivals for {settings['seconds']:g} s, a deadline of "
        f"{settings['deadline_s']:g} s for each whole answer. The busier pool can compute "
        f"{result['sustainable']:.1f} requests/s. Goodput at three times that rate, divided by the best goodput: "
        f"{ratio['admission']:.2f} with admission, {ratio['none']:.2f} without."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per system and rate."""
    columns = ["system", "load", "requests/s", "met", "refused", "missed", "goodput, requests/s"]
    rows = [
        [
            system,
            f"{point['load']:g}",
            f"{point['rate']:.1f}",
            *(str(point[end]) for end in ("met", "refused", "missed")),
            f"{point['goodput']:.1f}",
        ]
        for system in SYSTEMS
        for point in result["points"][system]
    ]
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Goodput by load."""
    with plots.figure(path, result, panels=1, height=3.8) as [axes]:
        for system in SYSTEMS:
            points = result["points"][system]
            label = "with admission" if system == "admission" else "without"
            axes.plot([point["load"] for point in points], [point["goodput"] for point in points], label=label)
        axes.set(xlabel="load, multiples of the sustainable rate", ylabel="goodput, requests/s", ylim=(0, None))
        axes.legend()


def _at(points: list[dict[str, Any]], load: float) -> float:
    return next(float(point["goodput"]) for point in points if point["load"] == load)


def _best(points: list[dict[str, Any]]) -> float:
    return max(float(point["goodput"]) for point in points)


def _sustainable(settings: OverloadSettings, profile: Profile) -> float:
    """Requests per second that the busier pool can compute, with the mean length of the prompts."""
    mean = settings.prompt_tokens * np.exp(settings.spread**2 / 2)
    targets, speculators = profile.gpus - profile.speculator_gpus, profile.speculator_gpus
    read = mean * profile.speculator.ms_per_token(speculators) + 8 * profile.speculator.ms_per_step(speculators)
    kept = settings.keep_rate * mean * profile.target.ms_per_token(targets)
    return float(settings.replicas * 1e3 / max(read, kept))


async def _offer(skim: _Skim, settings: OverloadSettings, rate: float) -> dict[str, Any]:
    """Requests at `rate` per second, and how many ended how."""
    draw = random.Random(settings.seed)
    until = WARM_UP_S + settings.seconds
    tasks: list[asyncio.Task[str]] = []
    at, counted = 0.0, 0
    while (at := at + draw.expovariate(rate)) < until:
        length = round(min(max(settings.prompt_tokens * draw.lognormvariate(0, settings.spread), 1100), 60_000))
        ids = random_prompt(length, settings.seed, len(tasks)).tolist()
        await asyncio.sleep(at - asyncio.get_running_loop().time())
        counted += at >= WARM_UP_S
        tasks.append(asyncio.create_task(skim.ask(len(tasks), ids)))
    ends = (await asyncio.gather(*tasks))[len(tasks) - counted :]
    counts = {end: ends.count(end) for end in ("met", "refused", "missed")}
    return {**counts, "goodput": counts["met"] / settings.seconds}
