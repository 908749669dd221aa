"""Time to first token over HTTP, with the whole of Skim: Ray, router, proxy, and both pools on fractions of one GPU.

A stock vLLM server with its prefix cache and Skim stand on the same GPU, and each has it alone while it answers. They
take turns with conversations about a long document (`benchmarks.latency.turns`). The speculator is a real model. The
target has the sizes of a larger model of its family and random weights, so answers mean nothing and are not judged.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.presets import MODELS, make_folder
from benchmarks.harness.servers import MODEL, TELL_CACHED, dense_server
from benchmarks.latency.turns import MODES as KNOWN_MODES
from benchmarks.latency.turns import TurnsSettings, converse
from benchmarks.latency.turns_results import rows_of, totals_of
from benchmarks.latency.turns_results import table as table_of_length
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from cluster.config.schema import DeploymentConfig
from cluster.serve.preflight import free_port
from skim_common.models.source import local_folder, public_name

GPU_SHARES = {"target": 0.5, "speculator": 0.3}
"""Of the GPU, for Ray. Memory is set by `kv_gib`, so that engines can start at the same time."""
MODES = ("dense", "auto", "speculative")


@dataclass(frozen=True)
class GpuTurnsSettings:
    """target: a name in presets.MODELS. speculator: a folder or hub name. lengths: of the documents, in tokens of the
    demo pair. kv_gib: memory of the KV cache of each target; the speculator has a third. rounds: measured, after a
    warm-up round.
    """

    target: str
    speculator: str
    device: str
    lengths: tuple[int, ...] = (8192, 32768, 98304)
    turns: int = 2
    rounds: int = 2
    kv_gib: float = 12

    def conversation(self, length: int) -> TurnsSettings:
        """The settings for the documents of one length."""
        return TurnsSettings(
            self.target,
            self.speculator,
            document_tokens=length,
            turns=self.turns,
            rounds=self.rounds,
            keep_rate="auto",
            modes=MODES,
            style="instruct",
            scripted=True,
            dtype="bfloat16",
            seed=length,
        )

    def engine_options(self, pool: str) -> dict[str, Any]:
        """vLLM's options of a pool. All others have vLLM's defaults."""
        longest = max(self.conversation(length).longest for length in self.lengths)
        share = 1.0 if pool == "target" else 1 / 3
        options: dict[str, Any] = {"kv_cache_memory_bytes": int(share * self.kv_gib * 2**30), "dtype": "bfloat16"}
        if pool == "target":
            options |= {"load_format": "dummy", "max_model_len": longest}
        if self.device == "cpu":
            del options["kv_cache_memory_bytes"]
            return {**options, "dtype": "float32", "enforce_eager": True}
        return {**options, "gpu_memory_utilization": 0.05}


def run(settings: GpuTurnsSettings, urls: Mapping[str, str], progress: Progress = silent) -> dict[str, Any]:
    """Measure. urls: those of `started`. `lengths`: for each, `rows` and `totals` as in
    `benchmarks.latency.turns_results`.

    Raises SkimError if a system does not answer.
    """
    began = machine()
    found = []
    for number, length in enumerate(settings.lengths):
        done = (number / len(settings.lengths), 1 / len(settings.lengths))
        asked = settings.conversation(length)
        answered = asyncio.run(converse(asked, MODES, urls, progress, done))
        found.append({"document_tokens": length, "rows": rows_of(answered), "totals": totals_of(answered)})
    return {
        "machine": began,
        "settings": asdict(settings) | {"speculator": public_name(settings.speculator)},
        "modes": {mode: KNOWN_MODES[mode] for mode in MODES},
        "engine_options": {pool: settings.engine_options(pool) for pool in GPU_SHARES},
        "lengths": found,
    }


@contextmanager
def started(settings: GpuTurnsSettings, progress: Progress = silent) -> Iterator[dict[str, str]]:
    """Both systems; gives the base URL of each mode. Raises SkimError if one does not start."""
    from cluster.serve.deployment import deployed

    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="skim-gpu-")))
        speculator = local_folder(settings.speculator, weights=True)
        target = make_folder(MODELS[settings.target], folder / settings.target, Path(speculator))
        progress("starting a stock vLLM server", 0)
        options = {**settings.engine_options("target"), **TELL_CACHED, "disable_uvicorn_access_log": True}
        stock = stack.enter_context(dense_server(Path(target), MODEL, options, {"VLLM_PLUGINS": ""}))
        progress("starting Skim", 0)
        skim = stack.enter_context(deployed(skim_config(settings, target), progress=lambda _: None))
        yield {"dense": stock} | dict.fromkeys(MODES[1:], skim)


def skim_config(settings: GpuTurnsSettings, target: str) -> DeploymentConfig:
    """The deployment: both pools on fractions of one GPU. target: its folder."""
    pools: dict[str, dict[str, Any]] = {}
    for pool, share in GPU_SHARES.items():
        place = {"gpus_per_replica": share} if settings.device == "cuda" else {"cpus_per_replica": 0.5}
        # The weights of the target are random, so no probe can pass.
        pools[pool] = {"engine_options": settings.engine_options(pool), "start_probe": "off", **place}
    pools["target"] |= {"model": target, "engine_options": {**pools["target"]["engine_options"], **TELL_CACHED}}
    pools["speculator"] |= {"model": settings.speculator}
    # A slow stream without comments between its events has all headers.
    router = {"port": free_port(), "keep_alive_s": 0}
    return DeploymentConfig.model_validate({"served_model_name": MODEL, "router": router, **pools})


def describe(result: dict[str, Any]) -> str:
    """The conditions and the modes."""
    settings = result["settings"]
    lines = [
        f"Target: the sizes of `{settings['target']}` with random weights. Speculator: `{settings['speculator']}`."
        f" Both pools, and a stock vLLM server with an engine of the same options, share one GPU and take turns."
        f" Conversations of {settings['turns']} turns, {settings['rounds']} rounds, medians; `keep_rate: auto`. Ratios"
        " are to dense within a round, with their range.",
        "",
        *(f"- *{mode}*: {what}." for mode, what in result["modes"].items()),
    ]
    return "\n".join(lines)


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: those of `skim bench turns` for each length, without the sums."""
    columns: list[str] = []
    rows: list[list[str]] = []
    for entry in result["lengths"]:
        columns, found = table_of_length(entry | {"totals": []})
        rows += found
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Time to first token over the prompt's length, in the first turn and in the last one."""
    from benchmarks.report import plots

    last = result["settings"]["turns"]
    with plots.figure(path, result, panels=2) as panels:
        for axis, turn in zip(panels, (1, last), strict=True):
            lengths: list[int] = []
            for mode in result["modes"]:
                rows = [
                    row
                    for entry in result["lengths"]
                    for row in entry["rows"]
                    if (row["mode"], row["turn"]) == (mode, turn)
                ]
                lengths = [round(row["prompt_tokens"]) for row in rows]
                axis.plot(lengths, [row["ttft_ms"]["median"] for row in rows], label=mode)
            plots.prompt_axis(axis, lengths)
            axis.set(title=f"milliseconds to the first token, turn {turn}")
            axis.set_ylim(bottom=0)
            axis.legend()
