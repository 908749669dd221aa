"""`skim plan`: how many GPUs a deployment needs, how fast it will be, and whether Skim pays."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from cluster.json_file import write_json
from skim_common.errors import SkimError

app = typer.Typer(help="Plan a deployment from the configs of its models (docs/plan.md).", no_args_is_help=True)
console = Console(highlight=False)

KEEP_RATE = 0.2
"""Where the file and the command line leave the share to `auto`."""


@app.callback()
def plan() -> None: ...


@app.command()
def size(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A deployment file with both models.")] = None,
    target: Annotated[Path | None, typer.Option(metavar="MODEL", help="Target: a folder, or owner/name.")] = None,
    speculator: Annotated[Path | None, typer.Option(metavar="MODEL", help="Speculator.")] = None,
    gpu: Annotated[str, typer.Option(help="a100, l40s, h100, h200 or b200.")] = "h100",
    qps: Annotated[float, typer.Option(min=1e-6, help="Prompts per second.")] = 1.0,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 32000,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 300,
    slo_ttft: Annotated[float, typer.Option(min=0.0, help="Longest mean time to the first token, seconds.")] = 2.0,
    slo_tpot: Annotated[float, typer.Option(min=0.0, help="Longest mean time per token of an answer, seconds.")] = 0.05,
    keep_rate: Annotated[
        float | None,
        typer.Option(min=0.001, max=1.0, help="Share of the prompt to keep. Default: that of the file, else 0.2."),
    ] = None,
    acceptance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Probability that a draft is accepted after those before it.")
    ] = 0.7,
    drafts: Annotated[
        int | None, typer.Option(min=0, max=16, help="Drafts per step, K. Default: the best, or none.")
    ] = None,
    weight_bits: Annotated[float, typer.Option(min=1, max=32, help="Bits of a stored weight of both models.")] = 16,
    kv_bits: Annotated[float, typer.Option(min=1, max=32, help="Bits of a number in the KV caches.")] = 16,
    price: Annotated[float | None, typer.Option(min=0.0, help="Price of one GPU for an hour.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
    page_file: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE.html", help="Write the result and its curves as one HTML page."),
    ] = None,
) -> None:
    """Say how many GPUs each pool needs for a load, against plain vLLM on the same GPUs.

    Only the configs of the models are read: no weights, no GPU.
    """
    from cluster.plan.engine import Model
    from cluster.plan.gpus import Machine, gpu_named
    from cluster.plan.pools import Load
    from cluster.plan.report import answer as plan_answer
    from cluster.plan.size import Sizer

    chosen = gpu_named(gpu)
    paths, rate = _models(file, target, speculator)
    models = [Model.load(path) for path in paths]
    for model in models:
        if prompt + answer > model.size.positions:
            raise SkimError(
                f"model {model.name} has {model.size.positions} positions: --prompt plus --answer are"
                f" {prompt + answer}; make them shorter"
            )
    load = Load(qps, prompt, answer, slo_ttft, slo_tpot, keep_rate or rate, acceptance)
    sizer = Sizer(models[0], models[1], chosen, Machine.of(chosen), weight_bits, kv_bits)
    result = plan_answer(sizer, load, price, drafts)
    _show(result)
    if json_file is not None:
        write_json(json_file, result)
        _print_line(f"Wrote {json_file}")
    if page_file is not None:
        _write_page(page_file, sizer, load, result, drafts)
        _print_line(f"Wrote {page_file}")


def _write_page(file: Path, sizer: Any, load: Any, result: dict[str, Any], drafts: int | None) -> None:
    from cluster.plan.page import first_tokens, gpus_over_load, page

    with console.capture() as shown:
        _show(result)
    text = page(result, shown.get(), first_tokens(sizer, load, result), gpus_over_load(sizer, load, drafts))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SkimError(f"cannot write {file}: {error.strerror}") from None


def _models(file: Path | None, target: Path | None, speculator: Path | None) -> tuple[tuple[str, str], float]:
    """Where target and speculator are, and the keep rate. The command line has precedence over the file."""
    from cluster.config.load import load_config
    from skim_common.models.source import located

    own = [located(str(model), Path.cwd()) if model else None for model in (target, speculator)]
    rate = KEEP_RATE
    if file is not None:
        config = load_config(file)
        own = [given or pool.model for given, pool in zip(own, (config.target, config.speculator), strict=True)]
        rate = config.selection.keep_rate if isinstance(config.selection.keep_rate, float) else KEEP_RATE
    if own[0] is None or own[1] is None:
        raise SkimError("give a deployment file, or both --target and --speculator")
    return (own[0], own[1]), rate


def _show(result: dict[str, Any]) -> None:
    load, gpu = result["load"], result["gpu"]["name"]
    _print_line(
        f"{load['qps']:g} prompts per second of {load['prompt']:,} tokens, answers of {load['answer']:,}, on {gpu};"
        f" keep rate {load['keep_rate']:g}, acceptance {load['acceptance']:g}"
    )
    console.print(_systems(result))
    console.print(_pools(result))
    if drafts := result["drafts"]:
        _print_line(
            f"Best K for one answer at a time: {drafts['best_alone']}, {drafts['speed_up_alone']:.2f} times as fast; in"
            f" this plan {drafts['in_the_plan']}."
        )
    if result["skim"]:
        tokens = result["pays_from_tokens"]
        when = f"from {tokens:,} tokens" if tokens else "at no length"
        _print_line(f"One prompt alone: its first token is sooner with Skim {when}.")
    _print_line(result["verdict"])
    errors = ", ".join(f"{name} {error:.0%}" for name, error in result["median_errors"].items())
    _print_line(f"\nMedian error against the measurements of the repository: {errors}.")
    for line in result["assumptions"]:
        _print_line(line)


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
    if any(plan and "cost_per_million_tokens" in plan for plan in plans.values()):
        rows["cost per million tokens"] = "{cost_per_million_tokens:.3f}"
    table = _table(plans)
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
    table = _table(pools)
    for name, form in rows.items():
        table.add_row(name, *(form.format(**pool, **pool["memory_gib"]) for pool in pools.values()))
    return table


def _table(columns: dict[str, Any]) -> Table:
    return Table("", *(Column(name, justify="right") for name in columns), box=SIMPLE_HEAD, pad_edge=False)


def _print_line(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
