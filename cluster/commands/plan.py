"""`skim plan`: how many GPUs a deployment needs, how fast it will be, and whether Skim pays."""

from typing import Annotated, Any

import typer
from rich.table import Table

from cluster.commands.plan_inputs import (
    Answer,
    File,
    GpuName,
    JsonFile,
    KeepRate,
    KvBits,
    PageFile,
    Prompt,
    Speculator,
    Target,
    WeightBits,
    console,
    print_line,
    read_inputs,
    table_of,
    write_files,
)

app = typer.Typer(help="Plan a deployment from the configs of its models (docs/plan.md).", no_args_is_help=True)


@app.callback()
def plan() -> None: ...


@app.command()
def size(
    file: File = None,
    target: Target = None,
    speculator: Speculator = None,
    gpu: GpuName = "h100",
    qps: Annotated[float, typer.Option(min=1e-6, help="Prompts per second.")] = 1.0,
    prompt: Prompt = 32000,
    answer: Answer = 300,
    slo_ttft: Annotated[float, typer.Option(min=0.0, help="Longest mean time to the first token, seconds.")] = 2.0,
    slo_tpot: Annotated[float, typer.Option(min=0.0, help="Longest mean time per token of an answer, seconds.")] = 0.05,
    keep_rate: KeepRate = None,
    acceptance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Probability that a draft is accepted after those before it.")
    ] = 0.7,
    drafts: Annotated[
        int | None, typer.Option(min=0, max=16, help="Drafts per step, K. Default: the best, or none.")
    ] = None,
    weight_bits: WeightBits = 16,
    kv_bits: KvBits = 16,
    price: Annotated[float | None, typer.Option(min=0.0, help="Price of one GPU for an hour.")] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Take the speed of reads from the running deployment of FILE.")
    ] = False,
    address: Annotated[str, typer.Option(help="With --calibrate: its Ray cluster; 'auto' is the one here.")] = "auto",
    json_file: JsonFile = None,
    page_file: PageFile = None,
) -> None:
    """Say how many GPUs each pool needs for a load, against plain vLLM on the same GPUs.

    Only the configs of the models are read: no weights, no GPU.
    """
    from cluster.plan.kept import kept_by_default
    from cluster.plan.pools import Load
    from cluster.plan.report import answer as plan_answer

    inputs = read_inputs(file, target, speculator, gpu, keep_rate, weight_bits, kv_bits)
    inputs.check_positions(prompt + answer, "--prompt plus --answer")
    rate = inputs.keep_rate
    load = Load(
        qps, prompt, answer, slo_ttft, slo_tpot, rate or kept_by_default(prompt), acceptance, by_default=rate is None
    )
    sizer = inputs.calibrated(address) if calibrate else inputs.sizer
    result = plan_answer(sizer, load, price, drafts)

    def page_of(text: str) -> str:
        from cluster.plan.page import first_tokens, gpus_over_load, page

        return page(result, text, first_tokens(sizer, load, result), gpus_over_load(sizer, load, drafts))

    write_files(result, lambda: _show(result), json_file, page_file, page_of)


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
    if any(plan and "cost_per_million_tokens" in plan for plan in plans.values()):
        rows["cost per million tokens"] = "{cost_per_million_tokens:.3f}"
    table = table_of(plans)
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
    table = table_of(pools)
    for name, form in rows.items():
        table.add_row(name, *(form.format(**pool, **pool["memory_gib"]) for pool in pools.values()))
    return table
