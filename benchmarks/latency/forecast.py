"""How right the router's forecast is, and its choice: real engines, prompts of the shapes of agents and chats.

Every prompt is sent twice, as two clients whose caches hold the same: one asks with `auto`, which tells both estimates,
the other one asks for the mode that was not chosen. So both estimates meet a real time to the first token, in the same
state of the caches. Before a prompt of a later turn, both clients send the turns before it, in the same mode.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
from safetensors.torch import load_file, save_file

from benchmarks.harness.chat_client import Timed, ask
from benchmarks.harness.json_lines import JsonLines
from benchmarks.harness.models import Shape, every_head
from benchmarks.harness.servers import MODEL, engine_environment, skim_config
from benchmarks.latency.forecast_results import describe, plot, table
from benchmarks.latency.forecast_shapes import ADAPTER, ROUNDS_APART, SHAPES, TEMPLATE, Case, Prompt, learned
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from skim_common.errors import SkimError
from skim_common.models.source import local_folder, public_name
from speculator_service.scoring import heads

__all__ = ["describe", "plot", "run", "table"]

LONGEST = 24_576
"""Tokens of the longest prompt with its answer."""
HELD = 8 * LONGEST
"""Tokens that each KV cache holds."""
LEARNED = 6
"""Prompts that the router learns from in each mode, before any is measured."""


@dataclass(frozen=True)
class ForecastSettings:
    """read: how the speculator reads, each of which all shapes are measured with. resume: as in `JsonLines`."""

    target: str
    speculator: str
    read: tuple[str, ...] = ("windows", "whole")
    shapes: tuple[str, ...] = tuple(SHAPES)
    rounds: int = 4
    dtype: str = "float32"
    resume: Path | None = None


@dataclass(frozen=True)
class Measured:
    """One prompt. chosen, reason: by `auto`. estimates, first_ms: milliseconds to the first token, by mode. load: of
    the machine, in the last minute."""

    shape: str
    read: str
    round: int
    prompt_tokens: int
    kept_tokens: int
    chosen: str
    reason: str
    estimates: dict[str, float]
    first_ms: dict[str, float]
    parts: dict[str, dict[str, float]]
    load: float


def run(settings: ForecastSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; `prompts` are those of Measured. Raises SkimError if the deployment does not start or answer."""
    from cluster.serve.deployment import deployed

    began, found = machine(), dict[tuple[str, str, int], Measured]()
    given = {name: value for name, value in asdict(settings).items() if name != "resume"}
    given |= {name: public_name(given[name]) for name in ("target", "speculator")}

    def take(line: dict[str, Any]) -> None:
        one = Measured(**line)
        found[one.shape, one.read, one.round] = one

    pair = {name: given[name] for name in ("target", "speculator", "dtype")}
    journal = JsonLines(settings.resume, {"forecast": pair}, "--resume", take)
    wanted = list(places(settings))
    if missing := [place for place in wanted if place not in found]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            progress("starting Skim", 0)
            url = stack.enter_context(deployed(_config(settings, folder), progress=lambda _: None))
            found |= asyncio.run(_measure(settings, url, missing, journal, progress))
    return {
        "machine": began,
        "settings": given,
        "environment": engine_environment(),
        "prompts": [asdict(found[place]) for place in wanted],
    }


def places(settings: ForecastSettings) -> Iterator[tuple[str, str, int]]:
    """The shape, read and round of each prompt that is measured, in their order: a head stays in the caches between
    the rounds of its shape."""
    for shape in settings.shapes:
        yield from ((shape, read, number) for read in settings.read for number in range(settings.rounds))


def _config(settings: ForecastSettings, folder: Path) -> Any:
    """The deployment, with an adapter, a template that writes tools, and a head profile for windows."""
    target, speculator = (Path(local_folder(model, weights=True)) for model in (settings.target, settings.speculator))
    shape = json.loads((speculator / "config.json").read_text(encoding="utf-8"))
    sizes = Shape(shape["num_hidden_layers"], shape["num_attention_heads"], shape["num_key_value_heads"], 0)
    heads.save(every_head(speculator, sizes), folder / "heads.json")
    (folder / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    config = skim_config(
        target, speculator, LONGEST, HELD, dtype=settings.dtype, head_profile=folder / "heads.json"
    ).model_dump(exclude_unset=True)
    config["target"]["engine_options"] |= {
        "chat_template": str(folder / "template.jinja"),
        "lora_modules": [f"{ADAPTER}={_adapter(target, folder / ADAPTER)}"],
    }
    from cluster.config.schema import DeploymentConfig

    return DeploymentConfig.model_validate(config)


def _adapter(model: Path, folder: Path, rank: int = 8) -> Path:
    """A LoRA adapter of all queries and values, whose second factor is 0: answers stay as they are."""
    folder.mkdir()
    change = {}
    for name, weight in load_file(model / "model.safetensors").items():
        if any(f".{module}.weight" in name for module in ("q_proj", "v_proj")):
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            change[f"{prefix}.lora_A.weight"] = weight.new_ones(rank, weight.shape[1])
            change[f"{prefix}.lora_B.weight"] = weight.new_zeros(weight.shape[0], rank)
    save_file(change, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


async def _measure(
    settings: ForecastSettings, url: str, missing: list[tuple[str, str, int]], journal: JsonLines, progress: Progress
) -> dict[tuple[str, str, int], Measured]:
    found = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        asker = _Asker(session, url)
        for number in range(LEARNED):
            progress("first requests", 0)
            for read in settings.read:
                await asker.ask(Prompt(learned(number)), read, "speculative", "learned")
            await asker.ask(Prompt(learned(number + LEARNED)), "whole", "dense", "learned")
        begun: set[tuple[str, str]] = set()
        for place, (shape, read, number) in enumerate(missing):
            progress(f"round {number + 1}: {shape}, {read}", place / len(missing))
            # A run that goes on has empty caches: the head is read again.
            case = SHAPES[shape](number)
            if (shape, read) not in begun:
                case = Case(case.asked, case.before or SHAPES[shape](0).before)
            begun.add((shape, read))
            one = found[shape, read, number] = await asker.measure(case, shape, read, number)
            journal.append(asdict(one))
    return found


class _Asker:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def measure(self, case: Case, shape: str, read: str, number: int) -> Measured:
        """One prompt in both modes."""
        salts = [f"{shape} {read} {client} {number if shape in ROUNDS_APART else ''}" for client in ("auto", "other")]
        for salt in salts:
            for prompt, mode in case.before:
                await self.ask(prompt, read, mode, salt)
        auto = await self.ask(case.asked, read, "auto", salts[0])
        chosen, (reason, estimates) = auto.headers["x-skim-mode"], told(auto.headers["x-skim-reason"])
        other = "dense" if chosen == "speculative" else "speculative"
        answers = {chosen: auto, other: await self.ask(case.asked, read, other, salts[1])}
        return Measured(
            shape=shape,
            read=read,
            round=number,
            prompt_tokens=int(auto.usage["prompt_tokens"]),
            kept_tokens=int(answers["speculative"].headers["x-skim-kept-tokens"]),
            chosen=chosen,
            reason=reason,
            estimates=estimates,
            first_ms={mode: answer.first_ms for mode, answer in answers.items()},
            parts={mode: dict(answer.parts) for mode, answer in answers.items()},
            load=os.getloadavg()[0],
        )

    async def ask(self, prompt: Prompt, read: str, mode: str, salt: str) -> Timed:
        enabled = {"dense": False, "speculative": "always", "auto": "auto"}[mode]
        body = {
            "model": MODEL,
            "messages": prompt.messages,
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
            "speculative_prefill": {"enabled": enabled, "read": read},
            **prompt.fields,
        }
        answer = await ask(self._session, f"{self._url}/v1/chat/completions", body)
        if mode != "auto" and answer.headers.get("x-skim-mode") != mode:
            raise SkimError(f"a prompt that was to run {mode} ran as {answer.reason}")
        return answer


def told(reason: str) -> tuple[str, dict[str, float]]:
    """The word and the estimates in `x-skim-reason`."""
    word, *parameters = reason.split(";")
    found = dict(parameter.split("=", 1) for parameter in parameters)
    return word, {mode: float(found[mode]) for mode in ("dense", "speculative") if mode in found}
