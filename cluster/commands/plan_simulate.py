"""`skim plan simulate`: a day of traffic on the planned deployment, in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from skim_common.errors import SkimError

if TYPE_CHECKING:
    from cluster.plan.simulate.traffic import Traffic

MOST_REQUESTS = 500_000
"""Requests that are simulated: of more, a share."""


def simulate(
    file: File = None,
    target: Target = None,
    speculator: Speculator = None,
    gpu: GpuName = "h100",
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trace in Mooncake's format. Default: a built-in day of conversations."),
    ] = None,
    copies: Annotated[int, typer.Option(min=1, help="Copies of the trace at once, which share nothing.")] = 1,
    qps: Annotated[float, typer.Option(min=1e-6, help="Prompts per second at the peak of the built-in day.")] = 1.0,
    prompt: Prompt = 32000,
    answer: Answer = 300,
    slo_ttft: Annotated[float, typer.Option(min=0.0, help="Longest time to the first token, seconds.")] = 2.0,
    slo_tpot: Annotated[float, typer.Option(min=0.0, help="Longest time per token of an answer, seconds.")] = 0.05,
    keep_rate: KeepRate = None,
    start: Annotated[float, typer.Option(min=0.0, help="Seconds in which a replica starts.")] = 120.0,
    weight_bits: WeightBits = 16,
    kv_bits: KvBits = 16,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the traffic.")] = 0,
    json_file: JsonFile = None,
    page_file: PageFile = None,
) -> None:
    """Simulate a day of traffic: requests within the SLOs and GPU hours, against plain scaling and plain vLLM.

    Only the configs of the models are read: no weights, no GPU.
    """
    from cluster.plan.kept import kept_by_default
    from cluster.plan.pools import Load
    from cluster.plan.simulate.compare import compare
    from router.options.settings import RouterConfig

    inputs = read_inputs(file, target, speculator, gpu, keep_rate, weight_bits, kv_bits)
    traffic = _traffic(trace, copies, qps, prompt, answer, seed)
    inputs.check_positions(int((traffic.prompt + traffic.answer).max()), "the longest prompt and its answer")
    router = inputs.config.router if inputs.config else RouterConfig()
    pools = inputs.config.pools if inputs.config else {}
    result = compare(
        inputs.sizer,
        Load(qps, prompt, answer, slo_ttft, slo_tpot, inputs.keep_rate or kept_by_default(prompt)),
        traffic,
        scaling={name: pool.autoscaling for name, pool in pools.items() if pool.autoscaling},
        min_prompt_tokens=router.min_prompt_tokens,
        max_wait_s=router.max_wait_s or float("inf"),
        start_s=start,
    )

    def page_of(text: str) -> str:
        from cluster.plan.simulate.page import day_page

        return day_page(result, text)

    write_files(result, lambda: _show(result), json_file, page_file, page_of)


def _traffic(trace: Path | None, copies: int, qps: float, prompt: int, answer: int, seed: int) -> "Traffic":
    from cluster.plan.simulate.trace import copies as copied
    from cluster.plan.simulate.trace import read_trace
    from cluster.plan.simulate.traffic import DAY_S, RATES, daily, traced

    if trace is None:
        expected = qps * DAY_S * sum(RATES) / len(RATES)
        return daily(qps, prompt, answer, seed, share=min(1.0, MOST_REQUESTS / expected))
    requests = read_trace(trace)
    if not requests:
        raise SkimError(f"the trace {trace.name} has no request")
    return traced(copied(requests, copies, seed))


def _show(result: dict[str, Any]) -> None:
    from cluster.plan.simulate.compare import SYSTEMS

    load, share = result["load"], result["simulated_share"]
    part = f" ({share:.0%} of them simulated)" if share < 1 else ""
    print_line(
        f"{result['requests']:,} requests in {result['hours']:.1f} hours{part}, at most {result['most_gpus']} x"
        f" {result['gpu']['name']}; SLOs {load['slo_ttft']:g} s and {load['slo_tpot']:g} s per token, keep rate"
        f" {load['keep_rate']:g}"
    )
    table = table_of(dict.fromkeys(SYSTEMS.values()))
    rows = {
        "within the SLOs": "{within:.1%}",
        "  first token": "{within_ttft:.1%}",
        "  time per token": "{within_tpot:.1%}",
        "refused": "{refused:.1%}",
        "first token: median, p99": "{first_token_s[median]:.2f}, {first_token_s[p99]:.2f} s",
        "speculative": "{speculative:.0%}",
        "GPU hours": "{gpu_hours_in_all:,.0f}",
        "  target, speculator": "{by_pool}",
    }
    for name, form in rows.items():
        cells = []
        for system in SYSTEMS:
            found = result["systems"][system]
            hours = found["gpu_hours"]
            by_pool = ", ".join(f"{hours.get(pool, 0):,.0f}" for pool in ("target", "speculator"))
            cells.append(form.format(**found, gpu_hours_in_all=sum(hours.values()), by_pool=by_pool))
        table.add_row(name, *cells)
    console.print(table)
    print_line(result["verdict"])
    print_line("\nWhat is approximated, and how far the simulation was from a real deployment: docs/plan.md.")
