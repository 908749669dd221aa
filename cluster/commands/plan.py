"""`skim plan`: how many GPUs a deployment needs, how fast it will be, and whether Skim pays."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from cluster.commands.grouped import grouped
from cluster.commands.output import console, print_line, write_result
from skim_common.errors import SkimError

if TYPE_CHECKING:
    from cluster.config.schema import DeploymentConfig
    from cluster.plan.size import Sizer

app = typer.Typer(help="Plan a deployment from the configs of its models (docs/plan.md).", no_args_is_help=True)


@app.callback()
def plan() -> None: ...


@dataclass(frozen=True)
class LoadOptions:
    """The load of `cluster.plan.pools.PlannedLoad`. keep_rate: None if no option says it."""

    qps: Annotated[float, typer.Option(min=1e-6, help="Prompts per second.")] = 1.0
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 32000
    answer: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 300
    slo_ttft: Annotated[float, typer.Option(min=0.0, help="Longest mean time to the first token, seconds.")] = 2.0
    slo_tpot: Annotated[float, typer.Option(min=0.0, help="Longest mean time per token of an answer, seconds.")] = 0.05
    keep_rate: Annotated[
        float | None,
        typer.Option(min=0.001, max=1.0, help="Share of the prompt to keep. Default: that of the file, or of `auto`."),
    ] = None
    acceptance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Probability that a draft is accepted after those before it.")
    ] = 0.7


@app.command()
@grouped
def size(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A deployment file with both models.")] = None,
    target: Annotated[Path | None, typer.Option(metavar="MODEL", help="Target: a folder, or owner/name.")] = None,
    speculator: Annotated[Path | None, typer.Option(metavar="MODEL", help="Speculator.")] = None,
    gpu: Annotated[str, typer.Option(help="a100, l40s, h100, h200 or b200.")] = "h100",
    *,
    load: LoadOptions,
    drafts: Annotated[
        int | None, typer.Option(min=0, max=16, help="Drafts per step, K. Default: the best, or none.")
    ] = None,
    weight_bits: Annotated[float, typer.Option(min=1, max=32, help="Bits of a stored weight of both models.")] = 16,
    kv_bits: Annotated[float, typer.Option(min=1, max=32, help="Bits of a number in the KV caches.")] = 16,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Say how many GPUs each pool needs for a load, against plain vLLM on the same GPUs.

    Only the configs of the models are read: no weights, no GPU.
    """
    from cluster.config.load import load_config
    from cluster.plan.kept import kept_by_default
    from cluster.plan.pools import PlannedLoad
    from cluster.plan.report import answer

    config = load_config(file) if file else None
    sizer, rate = _sizer(config, [target, speculator], gpu, weight_bits, kv_bits)
    _check_positions(sizer, load.prompt + load.answer)
    rate = load.keep_rate or rate
    shared = asdict(load) | {"keep_rate": rate or kept_by_default(load.prompt)}
    result = answer(sizer, PlannedLoad(**shared, by_default=rate is None), drafts)
    _show(result)
    write_result(result, json_file)


def _sizer(
    config: "DeploymentConfig | None", models: list[Path | None], gpu: str, weight_bits: float, kv_bits: float
) -> tuple["Sizer", float | None]:
    """The models on their GPU, and the fixed keep rate of the file. models: target and speculator of the command line,
    which have precedence. Raises SkimError."""
    from cluster.plan.engine import Model
    from cluster.plan.gpus import Machine, gpu_named
    from cluster.plan.size import Sizer
    from skim_common.models.source import located

    chosen = gpu_named(gpu)
    own = [located(str(model), Path.cwd()) if model else None for model in models]
    rate: float | None = None
    windows = again = True
    if config is not None:
        own = [given or pool.model for given, pool in zip(own, (config.target, config.speculator), strict=True)]
        rate = config.selection.fixed_rate
        windows = config.selection.for_prompt(windows=True).read == "windows"
        again = config.selection.read_again == "on"
    if own[0] is None or own[1] is None:
        raise SkimError("give a deployment file, or both --target and --speculator")
    pair = (Model.load(own[0]), Model.load(own[1]))
    return Sizer(*pair, chosen, Machine.of(chosen), weight_bits, kv_bits, windows=windows, again=again), rate


def _check_positions(sizer: "Sizer", tokens: int) -> None:
    """Raises SkimError if a model cannot read so many tokens. In windows, a speculator reads any number."""
    for model in (sizer.target, *([] if sizer.windows else [sizer.speculator])):
        if tokens > model.size.positions:
            raise SkimError(
                f"model {model.name} has {model.size.positions} positions: --prompt plus --answer are {tokens};"
                " make them shorter"
            )


def _show(result: dict[str, Any]) -> None:
    load, gpu = result["load"], result["gpu"]["name"]
    print_line(
        f"{load['qps']:g} prompts per second of {load['prompt']:,} tokens, answers of {load['answer']:,}, on {gpu};"
        f" keep rate {load['keep_rate']:g}, acceptance {load['acceptance']:g}"
    )
    console.print(_systems(result))
    console.print(_pools(result))
    if drafts := result["drafts"]:
        print_line(
            f"Best K for one answer at a time: {drafts['best_alone']}, {drafts['speed_up_alone']:.2f} times as fast; in"
            f" this plan {drafts['in_the_plan']}."
        )
    if result["skim"]:
        tokens = result["pays_from_tokens"]
        when = f"from {tokens:,} tokens" if tokens else "at no length"
        print_line(f"One prompt alone: its first token is sooner with Skim {when}.")
    print_line(result["verdict"])
    errors = ", ".join(f"{name} {error:.0%}" for name, error in result["median_errors"].items())
    print_line(f"\nMedian error against the measurements of the repository: {errors}.")
    for line in result["assumptions"]:
        print_line(line)


def _systems(result: dict[str, Any]) -> Table:
    plans = {"Skim": result["skim"], "plain vLLM": result["plain"]}
    if result["skim"]:
        plans["plain, same GPUs"] = result["plain_on_the_same_gpus"]
    rows = {
        "GPUs": "{gpus}",
        "first token": "{first_token_s:.2f} s",
        "per token": "{per_token_s:.4f} s",
        "SLOs": "{slos}",
    }
    table = _table_of(plans)
    for name, form in rows.items():
        cells = [
            form.format(**plan, slos="kept" if plan["keeps_the_slos"] else "missed") if plan else "not possible"
            for plan in plans.values()
        ]
        table.add_row(name, *cells)
    return table


def _pools(result: dict[str, Any]) -> Table:
    skim, plain = result["skim"] or {}, result["plain"] or {}
    found = {"speculator": skim.get("speculator"), "target": skim.get("target"), "plain vLLM": plain.get("target")}
    pools: dict[str, dict[str, Any]] = {name: pool for name, pool in found.items() if pool}
    rows = {
        "tensor parallel x replicas": "{tensor_parallel} x {replicas}",
        "wait + prefill": "{wait_s:.2f} + {prefill_s:.2f} s",
        "busy": "{busy:.0%}",
        "GiB per GPU: weights": "{weights:.1f}",
        "  graphs and activations": "{working:.1f}",
        "  Skim's buffers": "{buffers:.1f}",
        "  KV": "{kv:.1f}",
        "sessions of a replica: fit": "{sessions}",
        "  decoding at a time": "{rows:.1f}",
    }
    table = _table_of(pools)
    for name, form in rows.items():
        table.add_row(name, *(form.format(**pool, **pool["memory_gib"]) for pool in pools.values()))
    return table


def _table_of(columns: dict[str, Any]) -> Table:
    """An empty table with a first column of names, and these."""
    return Table("", *(Column(name, justify="right") for name in columns), box=SIMPLE_HEAD, pad_edge=False)
