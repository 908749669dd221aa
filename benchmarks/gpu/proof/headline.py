"""The numbers that users ask for: time to first token, decoding speed, and what drafting costs.

Only the ratio of Skim to its limit is judged, and only at real sizes. All other numbers are measured.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import decode as decoding
from benchmarks.gpu import ttft as first_token
from benchmarks.gpu.engines import running_pair
from benchmarks.gpu.presets import configs, make_folder, preset
from benchmarks.gpu.proof.engines import stopped, tell_what_runs
from benchmarks.gpu.steps.checks import Checks, Settings
from kv_transfer.options import SelectionOptions
from skim_common.environment import with_environment
from speculator_service.engine import ScoreRequest

DRAFTS = 4
COSTS = {
    "plain_ms": "a step without drafts",
    "verify_ms": "a step that verifies drafts",
    "draft_ms": "a round of drafting",
}
MOST = 1.1
"""Skim's time to first token, divided by that of both models' forwards alone."""


async def ttft(settings: Settings, checks: Checks) -> None:
    """`benchmarks.gpu ttft`."""
    chosen, lengths, rates = ("toy", (256,), (0.2,)) if settings.toy else ("8b", (32768, 131072), (0.1, 0.2))
    reads = ("whole", "windows")
    wanted = first_token.GpuTtftSettings(chosen, settings.device, lengths, rates, rounds=2, reads=reads)
    async with running_pair("auto", preset(chosen), settings.device, max(lengths), print) as pair:
        await _tell_engine(pair, settings, checks)
        result = await first_token.run(pair, wanted, _progress)
    for row in result["rows"]:
        name = f"{row['prompt_tokens']}, {row['read']}, keep {row['keep_rate']}"
        faster, ratio = row["dense_to_skim"]["median"], row["skim_to_limit"]["median"]
        says = f"times faster than dense ({row['dense_ms']:.0f} ms), scoring {row['scoring_ms']:.1f} ms"
        checks.measured(f"{name}: faster", faster, says)
        says = "times the forwards of both models alone"
        if settings.toy:
            checks.measured(f"{name}: limit", ratio, says)
        else:
            checks.judge(f"{name}: limit", ratio <= MOST, ratio, f"{says}, at most {MOST}")


async def decode(settings: Settings, checks: Checks) -> None:
    """`benchmarks.gpu decode`: with stock, the cost of the engine that verifies drafts; and the cost of drafting."""
    chosen, length, tokens = ("toy", 256, 16) if settings.toy else ("8b", 32768, 128)
    wanted = decoding.GpuDecodeSettings(
        chosen, settings.device, (length,), drafts=DRAFTS, acceptances=(0.8, 1.0), answer_tokens=tokens, rounds=2
    )
    kept = int(length * wanted.keep_rate) + 256
    pairs = running_pair("auto", preset(chosen), settings.device, length, print, kept=kept, drafts=DRAFTS)
    async with pairs as pair:
        await _tell_engine(pair, settings, checks)
        result = await decoding.run(pair, wanted, _progress)
    [entry] = result["lengths"]
    for name, what in COSTS.items():
        checks.measured(name, entry["costs"][name], f"ms for {what}")
    for name, mode in entry["modes"].items():
        speed = f"times the speed of plain decoding; {mode['tokens_per_second']:.1f} tokens/s"
        checks.measured(name, mode["ratio_to_plain"]["median"], speed)
    if "stock" not in entry["modes"]:
        checks.skip("stock", "there is no engine without drafts beside the others")


async def layout(settings: Settings, checks: Checks) -> None:
    """The time of a drafting round with vLLM's default KV cache layout, and with all layers of a block together."""
    checks.measured("draft_ms", await _draft_ms(settings, checks, {}), "ms for a round of drafting, default layout")
    if settings.device == "cpu":
        checks.skip("draft_ms, BLNHC", "on CPU the layout is that of the backend")
        return
    blocks_first = {"VLLM_KV_CACHE_LAYOUT": "BLNHC"}
    checks.measured("draft_ms, BLNHC", await _draft_ms(settings, checks, blocks_first), "ms with blocks first")


async def _draft_ms(settings: Settings, checks: Checks, environment: dict[str, str]) -> float:
    """The median over 20 rounds in which all drafts are accepted, in a session of the speculator of the preset."""
    from speculator_service.vllm_backend.engine import VllmSpeculator

    config = configs(preset("toy" if settings.toy else "8b"))[1]
    options: dict[str, Any] = {"load_format": "dummy", "max_num_seqs": 8, "enforce_eager": settings.device == "cpu"}
    options |= {"max_model_len": 1024, "num_gpu_blocks_override": 256} if settings.toy else {"max_model_len": 16384}
    options |= {"gpu_memory_utilization": 0.3} if settings.device == "cuda" else {}
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = make_folder(config, Path(folder))
        with with_environment(environment), stopped(VllmSpeculator(path, **options)) as engine:
            await tell_what_runs(engine, settings, checks, str(environment or "default"), runner=None, backend=None)
            ids = first_token.prompt_ids(256 if settings.toy else 8192, 1)
            await engine.score(
                ScoreRequest("layout", ids, SelectionOptions(look_ahead=0, layers="last1"), keep_session=True)
            )
            answer = np.array([20], np.int32)
            for _ in range(20):
                began = time.perf_counter()
                drafts = (await engine.draft("layout", answer, DRAFTS)).tokens
                times.append(1e3 * (time.perf_counter() - began))
                answer = np.concatenate([answer, drafts, np.array([20], np.int32)])
    return statistics.median(times)


async def _tell_engine(pair: Any, settings: Settings, checks: Checks) -> None:
    vllm = pair.engine == "vllm"
    checks.judge("engine", vllm, int(vllm), f"the engine is {pair.engine}")
    if vllm:
        engines = {"speculator": pair._pair.speculator, "target": pair._pair.target}
        if pair.stock:
            engines["stock"] = pair._plain.target
        for name, engine in engines.items():
            await tell_what_runs(engine, settings, checks, name, runner=None, backend=None)


def _progress(what: str, done: float) -> None:
    print(f"{100 * done:3.0f} % {what}", flush=True)
