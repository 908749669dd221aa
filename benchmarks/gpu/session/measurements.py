"""What each step of the session measures. Its result is `NAME.json` in the session's folder, also while it runs."""

import asyncio
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu import served as answers_over_http
from benchmarks.gpu import ttft as first_token
from benchmarks.gpu.engines import running_pair
from benchmarks.gpu.memory import device_memory
from benchmarks.gpu.presets import configs, make_folder, preset
from benchmarks.gpu.session.result import Result
from benchmarks.gpu.steps.checks import Checks, Settings
from benchmarks.gpu.systems import GPU_SHARES, Systems
from benchmarks.gpu.vllm_pair import make_profile
from benchmarks.load import interference
from benchmarks.report.machine import machine
from benchmarks.report.statistics import in_words
from cluster.plan import GIB

DEMO = Path(__file__).parents[3] / "demo_models"
REAL = {"target": "qwen-coder-1.5b", "speculator": "qwen-coder-0.5b"}
"""Folders of the real pair: Qwen2.5-Coder 0.5B for 1.5B."""
THREE_TARGETS = 100 * GIB
"""Memory of a GPU that holds three targets of preset 8b and its speculator."""


def real_pair(settings: Settings) -> dict[str, str] | None:
    """The folders of the real pair, if both are there."""
    folders = {role: Path(settings.models) / name for role, name in REAL.items()}
    there = settings.models and all((folder / "config.json").exists() for folder in folders.values())
    return {role: str(folder.resolve()) for role, folder in folders.items()} if there else None


def served(settings: Settings, checks: Checks) -> None:
    """Chats over HTTP with the real pair, or with the demo pair where that is not there."""
    real = real_pair(settings)
    pair = real or {role: str(DEMO / role) for role in REAL}
    sizes: dict[str, Any] = {"chats": 3, "shortest": 512, "longest": 2048, "answer_tokens": 16} if settings.toy else {}
    wanted = answers_over_http.ServedSettings(
        pair["target"], pair["speculator"], settings.device, style="instruct" if real else "plain", **sizes
    )
    file = Result(settings, "served")
    result = answers_over_http.run(wanted, _progress, file.partial)
    file.whole(result)
    pair_says = "Qwen2.5-Coder 0.5B for 1.5B" if real else "the demo pair, because no real pair is there"
    rows = answers_over_http.parts(result["rows"])
    for row in rows[-len(answers_over_http.MODES) :]:
        says = (
            f"times as soon as stock (range {in_words(row['to_stock'])}), {row['first_ms']:.0f} ms to the first token"
        )
        checks.measured(f"{row['mode']}: first token", row["to_stock"]["median"], says)
        checks.measured(f"{row['mode']}: right", row["right"], f"of {row['chats']} answers; {pair_says}")
        checks.measured(f"{row['mode']}: tokens/s", row["tokens_per_s"], "of an answer after its first token")
    selected = [row for row in result["rows"] if row["mode"] == "speculative"]
    ran = sum(row["ran"].startswith("speculative") for row in selected)
    checks.judge("speculative chats", ran == len(selected), ran, f"of {len(selected)} ran speculative, all must")


async def first_token_8b(settings: Settings, checks: Checks) -> None:
    await _first_token(settings, checks, "first-token-8b", "8b", (8192, 32768, 65536, 131072), rounds=2)


async def first_token_32b(settings: Settings, checks: Checks) -> None:
    await _first_token(settings, checks, "first-token-32b", "32b", (8192, 32768, 65536), rounds=1)


async def _first_token(
    settings: Settings, checks: Checks, name: str, size: str, lengths: tuple[int, ...], rounds: int
) -> None:
    reads: tuple[str, ...] = ("windows:4096", "whole", "windows:1024")
    if size == "32b":
        reads = reads[:1]
    if settings.toy:
        size, lengths, reads = "toy", (256, 512), tuple(read.replace("4096", "256") for read in reads[:3])
    wanted = first_token.GpuTtftSettings(
        size, settings.device, lengths, (0.1, 0.2, first_token.DEFAULT), rounds=rounds, reads=reads
    )
    file = Result(settings, name)
    async with running_pair(preset(size), settings.device, max(lengths), print) as pair:
        result = await first_token.run(pair, wanted, _progress, file.partial)
        file.whole(result)
    for row in result["rows"]:
        expected = f"{row['expected']['dense_to_skim']:.2f} expected" if "expected" in row else "no arithmetic"
        says = f"times faster than dense ({row['dense_ms']:.0f} ms), {expected}; {row['skim_to_limit']['median']:.2f}"
        says += " times the forwards alone"
        if row.get("why_not_as_expected"):
            says += f"; {row['why_not_as_expected']}"
        case = f"{row['prompt_tokens']}, {row['read']}, keep {row['keep_rate']}"
        checks.measured(case, row["dense_to_skim"]["median"], says)


def load(settings: Settings, checks: Checks) -> None:
    """A stream beside two cold prompts: the share of its speed that is kept, on Skim and on stock servers."""
    size, tokens, chunks = ("toy", 512, (256,)) if settings.toy else ("8b", 32768, chunks_that_fit(settings.device))
    longest = tokens + interference.STREAM_PROMPT + 128
    file = Result(settings, "load")
    with tempfile.TemporaryDirectory(prefix="skim-gpu-") as folder:
        both = configs(preset(size))
        target, speculator = (make_folder(config, Path(folder) / role) for config, role in zip(both, REAL, strict=True))
        heads = make_profile(speculator)
        systems = Systems(
            settings.device, target, speculator, longest, 10, chunks, random=True, heads=heads, decode="none"
        )
        wanted = interference.InterferenceSettings(
            f"the target of preset {size}", f"its speculator, on {settings.device}", prompt_tokens=tokens,
            before_s=2, chunks=chunks, rounds=1, dtype=systems.engine_options("target")["dtype"],
            shapes=f" of preset `{size}` with random weights on {settings.device},",
        )  # fmt: skip
        began = machine()

        def result(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
            return {"machine": began, "settings": asdict(wanted), "rows": interference.summary(rounds)}

        with systems.started() as urls:
            rounds = asyncio.run(
                interference.measured_rounds(wanted, urls, _progress, lambda rounds: file.partial(result(rounds)))
            )
    file.whole(result(rounds))
    for row in result(rounds)["rows"]:
        says = (
            f"of the stream's {row['before']['tokens_per_s']['median']:.1f} tokens/s are kept; the cold prompts' first"
        )
        checks.measured(row["system"], row["share"]["median"], f"{says} token {row['first_ms']['median']:.0f} ms")


def chunks_that_fit(device: str) -> tuple[int, ...]:
    """The chunks of the stock servers beside Skim. Each of three 8B targets needs about 28 GiB."""
    return (2048, 8192) if device_memory(device)[0] >= THREE_TARGETS else (8192,)


def answers(settings: Settings, checks: Checks) -> None:
    """`skim eval --questions` with the real pair; with the demo pair at toy size."""
    pair = real_pair(settings) or ({role: str(DEMO / role) for role in REAL} if settings.toy else None)
    if pair is None or not settings.questions:
        missing = "a real pair (--models)" if pair is None else "a file of questions (--questions)"
        checks.skip("natural questions", f"there is not {missing}")
        return
    file = Path(settings.folder) / "answers.json"
    words = [
        "eval",
        "--questions",
        settings.questions,
        "--json",
        str(file),
        "--resume",
        str(file.with_suffix(".jsonl")),
    ]
    for role, folder in pair.items():
        words += [f"--{role}", folder]
        if settings.device == "cuda":  # both engines share the GPU
            words += [f"--{role}-options", json.dumps({"gpu_memory_utilization": GPU_SHARES[role]})]
    done = subprocess.run([sys.executable, "-c", "from cluster.commands.cli import main; main()", *words], check=False)
    right = done.returncode == 0 and file.exists()
    checks.judge("skim eval", right, done.returncode, "is its exit code, 0 if answers.json has the answers")


def _progress(what: str, done: float) -> None:
    print(f"{100 * done:3.0f} % {what}", flush=True)
