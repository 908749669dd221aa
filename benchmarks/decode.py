"""Tokens per second of the target's decode: plain, with the speculator drafting remotely, with vLLM's draft_model.

One core is pinned to each pool. All engines live through the whole run and take turns, prompt set by prompt set, so
that whatever else the machine does slows all modes alike. The drafting modes verify on the same target engine and
differ by what each request asks for. Prompts are compressed by the speculator; only decoding is timed, from a request's
first token to its last. The demo pair's answers are short, so the drafts that came with the selection cover most of
them; `ignore_eos` makes the models talk on past their end token, where they were never trained to agree. The demo
target is small as well: `target_layers` makes its steps cost what a deeper model's cost (benchmarks/padded_target.py).
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoTokenizer

from benchmarks import plots
from benchmarks.machine import machine
from benchmarks.padded_target import pad_target
from benchmarks.progress import Progress, silent
from cluster.demo_document import make_document
from kv_transfer.channel_server import DraftServer
from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.engine_start import CORES
from kv_transfer.messages import DecodeOptions, GenerateRequest, KeptPrompt, SelectionOptions, SelectRequest
from speculator_service.drafting import DraftService
from speculator_service.engine import SpeculatorEngine
from speculator_service.engine import create_engine as create_speculator
from speculator_service.service import SpeculatorService
from target_service.engine import create_engine as create_target

_ENGINE = {"enforce_eager": True, "dtype": "float32"}


@dataclass(frozen=True)
class Mode:
    """engine: which target engine verifies. decode: what each request asks for; None asks no session."""

    engine: str
    decode: DecodeOptions | None


def modes(drafts: int) -> dict[str, Mode]:
    """The modes by name; all but `remote_adaptive` verify up to K drafts always."""
    fixed = DecodeOptions(max_draft_tokens=drafts, adaptive=False, draft_ahead="off")
    ahead = {name: fixed.model_copy(update={"draft_ahead": name}) for name in ("chain", "branches")}
    return {
        "plain": Mode("plain", None),
        "remote": Mode("remote", fixed),
        "remote_chain": Mode("remote", ahead["chain"]),
        "remote_branches": Mode("remote", ahead["branches"]),
        "remote_kept": Mode("remote", fixed.model_copy(update={"draft_context": "kept"})),
        "remote_adaptive": Mode("remote", ahead["chain"].model_copy(update={"adaptive": True})),
        "draft_model": Mode("draft_model", None),
    }


MODES = tuple(modes(1))


@dataclass(frozen=True)
class Settings:
    """prompts: per set. batch: requests at a time. drafts: K. rounds: sets per mode, after one that is not counted.

    prompt_tokens: each length is measured by itself, on the same engines. modes: names of `MODES`; `plain` is always
    measured. target_layers: pad the target to so many.
    """

    target: str
    speculator: str
    prompts: int = 8
    batch: int = 1
    prompt_tokens: tuple[int, ...] = (2048,)
    answer_tokens: int = 64
    keep_rate: float = 0.2
    drafts: int = 4
    rounds: int = 3
    ignore_eos: bool = False
    target_layers: int | None = None
    modes: tuple[str, ...] = MODES


def run(settings: Settings, progress: Progress = silent) -> dict[str, Any]:
    """Measure: `machine`, `settings`, and `modes` (see `_summary`) and `speculator_counts`.

    The latter two are under `by_prompt_tokens` where there are several lengths. Raises SkimError if an engine does not
    start or the target cannot be padded.
    """
    with tempfile.TemporaryDirectory(prefix="skim-target-") as folder:
        padded: dict[str, Any] = {}
        if settings.target_layers is not None:
            parameters = pad_target(Path(settings.target), Path(folder), settings.target_layers)
            padded = {"target_is_padded": True, "target_parameters": parameters}
        began = machine()
        blocks = asyncio.run(_run(replace(settings, target=folder) if padded else settings, progress))
    names = {"target": Path(settings.target).name, "speculator": Path(settings.speculator).name}
    result: dict[str, Any] = {"machine": began, "settings": vars(settings) | names | padded}
    if len(blocks) > 1:
        return {**result, "by_prompt_tokens": {str(length): block for length, block in blocks.items()}}
    [(result["settings"]["prompt_tokens"], block)] = blocks.items()
    return {**result, **block}


async def _run(settings: Settings, progress: Progress) -> dict[int, dict[str, Any]]:
    bench = await _Bench.start(settings, progress)
    blocks: dict[int, dict[str, Any]] = {}

    def tell(what: str, done: float) -> None:
        progress(what, (len(blocks) + done) / len(settings.prompt_tokens))

    try:
        for length in settings.prompt_tokens:
            blocks[length] = await _measure(bench, length, tell)
    finally:
        await bench.close()
    return blocks


async def _measure(bench: "_Bench", prompt_tokens: int, progress: Progress) -> dict[str, Any]:
    """All modes in turns, with prompts of one length."""
    settings = bench.settings
    asked = {name: mode for name, mode in modes(settings.drafts).items() if name in {"plain", *settings.modes}}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
    before = bench.service.metrics()
    for index in range(settings.rounds + 1):
        for turn, (name, mode) in enumerate(asked.items()):
            what = f"round {index} of {settings.rounds}" if index else "warming up"
            done = (index + turn / len(asked)) / (settings.rounds + 1)
            progress(f"prompts of {prompt_tokens} tokens, {what}: {name}", done)
            measured = await bench.measure(mode, prompt_tokens, seed=1000 * index)
            if index:
                runs[name].append(measured)
    return {
        "modes": {name: _summary(results, runs["plain"]) for name, results in runs.items()},
        "speculator_counts": {name: value - before[name] for name, value in bench.service.metrics().items()},
    }


def _by_length(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The modes of each length of prompts."""
    several = {length: block["modes"] for length, block in result.get("by_prompt_tokens", {}).items()}
    return several or {str(result["settings"]["prompt_tokens"]): result["modes"]}


def describe(result: dict[str, Any]) -> str:
    """What was measured, in a sentence or two."""
    settings, by_length = result["settings"], _by_length(result)
    what = (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, {settings['prompts']} prompts of "
        f"{' or '.join(by_length)} tokens per round, {settings['rounds']} rounds, {settings['batch']} at a time, "
        f"keep rate {settings['keep_rate']}, K = {settings['drafts']}, one core per pool, "
        + ("decoding on past the answers' end." if settings["ignore_eos"] else "whole answers.")
    )
    if settings.get("target_is_padded"):
        what += (
            f" The target is padded to {settings['target_layers']} layers ({settings['target_parameters'] / 1e6:.0f} "
            "million parameters) that add nothing: its answers are the same and its steps cost more."
        )
    if all(mode["ms_per_round"] is None for modes in by_length.values() for mode in modes.values()):
        what += " No drafting round was needed: the drafts that came with the selection covered the answers."
    return what


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, a mode each, for each length of prompts where there are several."""
    columns = ["mode", "tokens/s", "x plain (range)", "ms per token", "tokens per verify", "ms per drafting round"]
    columns += ["KV bytes per session", "accepted by position"]
    rows = [
        [
            name,
            f"{mode['tokens_per_second']:.0f}",
            f"{mode['ratio_to_plain']['median']:.2f} ({mode['ratio_to_plain']['lowest']:.2f} to "
            f"{mode['ratio_to_plain']['highest']:.2f})",
            f"{mode['ms_per_token']:.2f}",
            f"{mode['tokens_per_verify']:.2f}",
            _or_none(mode["ms_per_round"], "{:.1f}"),
            _or_none(mode["kv_bytes_per_session"], "{:,.0f}"),
            " ".join(f"{rate:.2f}" for rate in mode["acceptance_per_position"]),
        ]
        for name, mode in _named_modes(result).items()
    ]
    return columns, rows


def _named_modes(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The modes, named with their prompts' length where there are several."""
    by_length = _by_length(result)
    if len(by_length) == 1:
        return dict(*by_length.values())
    return {f"{name}, {length} tokens": mode for length, modes in by_length.items() for name, mode in modes.items()}


def _or_none(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def plot(result: dict[str, Any], path: Path) -> None:
    """Speed of each mode as a multiple of plain decoding, with its extremes over the rounds."""
    shown = _named_modes(result)
    names = list(shown)[::-1]
    ratios = [shown[name]["ratio_to_plain"] for name in names]
    medians = [ratio["median"] for ratio in ratios]
    below = [ratio["median"] - ratio["lowest"] for ratio in ratios]
    above = [ratio["highest"] - ratio["median"] for ratio in ratios]
    with plots.figure(path, result, height=0.8 + 0.4 * len(names)) as [axes]:
        colours = [
            plots.COLOURS[-1 if name.startswith("plain") else 1 if name.startswith("draft_model") else 0]
            for name in names
        ]
        axes.barh(names, medians, xerr=[below, above], color=colours, capsize=3)
        axes.axvline(1, color="black", linewidth=1)
        axes.set(xlabel="tokens per second, as a multiple of plain decoding")


def _summary(runs: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; `ratio_to_plain` is the median of the rounds' own ratios, with its extremes."""
    ratios = [run["tokens_per_second"] / base["tokens_per_second"] for run, base in zip(runs, plain, strict=True)]
    rounds, accepted = (sum(run[name] for run in runs) for name in ("rounds", "accepted"))
    tokens = sum(run["tokens"] for run in runs)
    drafted = np.sum([run["drafts_per_position"] for run in runs], axis=0)
    held = np.sum([run["accepted_per_position"] for run in runs], axis=0)
    return {
        "tokens_per_second": statistics.median(run["tokens_per_second"] for run in runs),
        "ms_per_token": statistics.median(run["ms_per_token"] for run in runs),
        "ratio_to_plain": {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)},
        "tokens_per_verify": 1 + accepted / rounds if rounds else 1.0,
        "ms_per_round": statistics.median(rounds_ms) if (rounds_ms := _all(runs, "round_ms")) else None,
        "kv_bytes_per_session": statistics.median(_all(runs, "kv_bytes")) if _all(runs, "kv_bytes") else None,
        "acceptance_per_position": [float(a / d) if d else 0.0 for a, d in zip(held, drafted, strict=True)],
        "verifications": rounds,
        "tokens": tokens,
    }


def _all(runs: list[dict[str, Any]], name: str) -> list[float]:
    return [value for run in runs for value in run[name]]


@dataclass
class _Answer:
    """When an answer's first and last token came, and how many there were."""

    first: float = 0.0
    last: float = 0.0
    tokens: int = 0


@dataclass
class _Bench:
    settings: Settings
    speculator: SpeculatorEngine
    service: DraftService
    select: SpeculatorService
    server: DraftServer
    targets: dict[str, Any]
    tokenizer: Any
    round_ms: list[float]

    @classmethod
    async def start(cls, settings: Settings, progress: Progress) -> "_Bench":
        cores = sorted(os.sched_getaffinity(0))
        first, last = cores[0], cores[-1]
        wanted = {"plain", *(modes(settings.drafts)[name].engine for name in settings.modes)}
        progress(f"starting the speculator and {len(wanted)} targets", 0)
        with _pinned(first):
            speculator = create_speculator("vllm", settings.speculator, options=_ENGINE)
        service = DraftService(speculator)
        round_ms: list[float] = []

        async def timed(request: DraftRequest) -> DraftReply:
            began = time.perf_counter()
            reply = await service.handle(request)
            if reply.drafts:
                round_ms.append(1e3 * (time.perf_counter() - began))
            return reply

        server = DraftServer(timed, "127.0.0.1")
        address = f"127.0.0.1:{await server.start()}"
        decode = {"max_draft_tokens": settings.drafts}
        options: dict[str, dict[str, Any]] = {
            "plain": {},
            "remote": {"decode": {**decode, "method": "remote"}, "draft_channel": {"deadline_s": 2.0}},
            "draft_model": {"decode": {**decode, "method": "draft_model"}, "draft_model": settings.speculator},
        }
        # Room for a whole prompt, not for the model's longest: with many layers its KV cache is large.
        room = {"max_model_len": max(settings.prompt_tokens) + settings.answer_tokens + settings.drafts}
        with _pinned(last):
            targets = {
                name: create_target("vllm", settings.target, options={**_ENGINE, **room, **more})
                for name, more in options.items()
                if name in wanted
            }
        select = SpeculatorService(speculator, address)
        tokenizer = AutoTokenizer.from_pretrained(settings.target)
        return cls(settings, speculator, service, select, server, targets, tokenizer, round_ms)

    async def measure(self, mode: Mode, prompt_tokens: int, seed: int) -> dict[str, Any]:
        """One set of prompts through one mode, `batch` at a time."""
        target, settings = self.targets[mode.engine], self.settings
        prompts = [await self._compress(prompt_tokens, seed + i, mode) for i in range(settings.prompts)]
        before = await target.decode_stats()
        self.round_ms.clear()
        seconds, tokens = 0.0, 0
        for start in range(0, len(prompts), settings.batch):
            batch = prompts[start : start + settings.batch]
            names = (f"{seed}-{start}-{i}" for i in range(len(batch)))
            decodes = (self._decode(target, prompt, mode, name) for prompt, name in zip(batch, names, strict=True))
            answers = await asyncio.gather(*decodes)
            # The first token comes from the prefill; what follows is decoding.
            seconds += max(answer.last for answer in answers) - min(answer.first for answer in answers)
            tokens += sum(answer.tokens - 1 for answer in answers)
        return {
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "ms_per_token": 1e3 * seconds * settings.batch / tokens,
            "round_ms": list(self.round_ms),
            "kv_bytes": [self._session_bytes(prompt, mode) for prompt in prompts if mode.decode is not None],
            **_difference(before, await target.decode_stats(), settings.drafts),
        }

    def _session_bytes(self, prompt: KeptPrompt, mode: Mode) -> int:
        """Keys and values of the prompt tokens that the drafter reads, float32."""
        config = AutoConfig.from_pretrained(self.settings.speculator)
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
        kept = mode.decode is not None and mode.decode.draft_context == "kept"
        return per_token * (int(prompt.token_ids.size) if kept else prompt.context_length)

    async def _compress(self, prompt_tokens: int, seed: int, mode: Mode) -> KeptPrompt:
        document = make_document(prompt_tokens, seed)
        ids = self.tokenizer.apply_chat_template(document.messages, add_generation_prompt=True, return_dict=False)
        request = SelectRequest(
            f"{seed}-{time.monotonic_ns()}",
            np.asarray(ids, np.int32),
            SelectionOptions(keep_rate=self.settings.keep_rate),
            decode=mode.decode,
        )
        kept = (await self.select.select(request)).kept
        if mode.decode is None:
            return replace(kept, session=None)
        assert kept.session is not None
        self.service.adopt(kept.session.id, kept.look_ahead_tokens, mode.decode.draft_ahead)
        return kept

    async def _decode(self, target: Any, prompt: KeptPrompt, mode: Mode, name: str) -> "_Answer":
        settings = self.settings
        sampling = {"temperature": 0.0, "ignore_eos": settings.ignore_eos, "max_tokens": settings.answer_tokens}
        request = GenerateRequest(f"{name}-{time.monotonic_ns()}", prompt, sampling)
        if mode.decode is not None:
            request = replace(request, decode=mode.decode)
        elif mode.engine != "plain":
            decode = DecodeOptions(method="draft_model", max_draft_tokens=self.settings.drafts, adaptive=False)
            request = replace(request, decode=decode)
        answer = _Answer()
        async for output in target.generate(request):
            answer.last = time.perf_counter()
            answer.first = answer.first or answer.last
            answer.tokens += int(output.completions[0].token_ids.size)
        return answer

    async def close(self) -> None:
        await self.server.stop()
        await self.service.close()
        for engine in (self.speculator, *self.targets.values()):
            engine.close()


def _difference(before: dict[str, Any], after: dict[str, Any], drafts: int) -> dict[str, Any]:
    """What vLLM's speculation counters gained; zeros for an engine without speculation."""
    gained: dict[str, Any] = {
        name: after.get(name, 0) - before.get(name, 0) for name in ("rounds", "drafts", "accepted")
    }
    for name in ("drafts_per_position", "accepted_per_position"):
        none = [0] * drafts
        gained[name] = [a - b for a, b in zip(after.get(name, none), before.get(name, none), strict=True)]
    return gained


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    """Engines that start inside run on this core alone."""
    usable = os.sched_getaffinity(0)
    os.environ[CORES] = str(core)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        del os.environ[CORES]
        os.sched_setaffinity(0, usable)
