"""What decoding and drafting cost. All numbers are measured, none is judged."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import decode as decoding
from benchmarks.gpu.engines import running_pair
from benchmarks.gpu.presets import configs, make_folder, preset
from benchmarks.gpu.proof.engines import stopped, tell_what_runs
from benchmarks.gpu.steps.checks import Checks, Settings
from benchmarks.gpu.ttft import prompt_ids
from benchmarks.gpu.vllm_pair import VllmPair
from kv_transfer.options import SelectionOptions
from skim_common.environment import with_environment
from speculator_service.engine import ScoreRequest

DRAFTS = 4
COSTS = {
    "plain_ms": "a step without drafts",
    "verify_ms": "a step that verifies drafts",
    "draft_ms": "a round of drafting",
}


async def decode(settings: Settings, checks: Checks) -> None:
    """`benchmarks.gpu decode`: with stock, the cost of the engine that verifies drafts; and the cost of drafting."""
    chosen, length, tokens = ("toy", 256, 16) if settings.toy else ("8b", 32768, 128)
    wanted = decoding.GpuDecodeSettings(
        chosen, settings.device, (length,), drafts=DRAFTS, acceptances=(0.8, 1.0), answer_tokens=tokens, rounds=2
    )
    kept = int(length * wanted.keep_rate) + 256
    pairs = running_pair(preset(chosen), settings.device, length, print, kept=kept, drafts=DRAFTS)
    async with pairs as pair:
        await _tell_engines(pair, settings, checks)
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
            ids = prompt_ids(256 if settings.toy else 8192, 1)
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


async def _tell_engines(pair: VllmPair, settings: Settings, checks: Checks) -> None:
    engines = {"speculator": pair._pair.speculator, "target": pair._pair.target}
    if pair._plain:
        engines["stock"] = pair._plain.target
    for name, engine in engines.items():
        await tell_what_runs(engine, settings, checks, name, runner=None, backend=None)


def _progress(what: str, done: float) -> None:
    print(f"{100 * done:3.0f} % {what}", flush=True)
