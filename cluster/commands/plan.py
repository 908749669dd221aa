"""`skim plan size`: how many GPUs a load needs, and how soon its first token comes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from cluster.commands.output import console, print_line
from cluster.json_file import write_json
from skim_common.errors import SkimError

app = typer.Typer(help="Plan a deployment from the configs of its models (docs/plan.md).", no_args_is_help=True)

ROWS = {
    "GPUs: tensor parallel x replicas": "{tensor_parallel} x {replicas}",
    "wait + prefill": "{wait_s:.2f} + {prefill_s:.2f} s",
    "a token of one answer alone": "{token_s:.4f} s",
    "busy": "{busy:.0%}",
    "GiB per GPU: weights": "{weights_gib:.1f}",
    "  KV": "{kv_gib:.1f}",
    "sessions that a replica holds": "{sessions}",
}


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
    keep_rate: Annotated[
        float | None,
        typer.Option(min=0.001, max=1.0, help="Share of the prompt to keep. Default: that of the file, or 0.3."),
    ] = None,
    weight_bits: Annotated[float, typer.Option(min=1, max=32, help="Bits of a stored weight of both models.")] = 16,
    kv_bits: Annotated[float, typer.Option(min=1, max=32, help="Bits of a number in the KV caches.")] = 16,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Say how many GPUs each pool needs for a load, and plain vLLM.

    Only the configs of the models are read: no weights, no GPU.
    """
    from cluster.config.load import load_config
    from cluster.plan import KEEP_RATE, Model, PlannedEngine, gpu_named, pays_from, pool
    from kv_transfer.options import SelectionOptions
    from skim_common.models.info import text_config
    from skim_common.models.source import located

    machine, config = gpu_named(gpu), load_config(file) if file else None
    selection = config.selection if config else SelectionOptions()
    in_file = (config.target.model, config.speculator.model) if config else (None, None)
    models = [
        located(str(given), Path.cwd()) if given else model
        for given, model in zip((target, speculator), in_file, strict=True)
    ]
    if not all(models):
        raise SkimError("give a deployment file, or both --target and --speculator")
    rate = keep_rate or selection.fixed_rate or KEEP_RATE
    reading = {"windows": selection.for_prompt(windows=True).read == "windows", "again": selection.read_again == "on"}
    big, small = (
        PlannedEngine(Model.of(model, text_config(model)), machine, 1, weight_bits, kv_bits, **reading)
        for model in filter(None, models)
    )
    for one in (big.model, *([] if small.windows else [small.model])):  # in windows, a speculator reads any number
        if prompt + answer > one.positions:
            raise SkimError(
                f"model {one.name} has {one.positions} positions: --prompt plus --answer are {prompt + answer};"
                " make them shorter"
            )
    pools = {
        "speculator": pool(small, qps, PlannedEngine.select_s, prompt),
        "target": pool(big, qps, PlannedEngine.read_s, round(rate * prompt), answer),
        "plain vLLM": pool(big, qps, PlannedEngine.read_s, prompt, answer),
    }
    sooner = pays_from(big, small, rate)
    table = Table("", *pools, box=SIMPLE_HEAD, pad_edge=False)
    for name, form in ROWS.items():
        table.add_row(name, *(form.format(**one) if one else "does not fit" for one in pools.values()))
    print_line(
        f"{qps:g} prompts per second of {prompt:,} tokens, answers of {answer:,}, on {machine.name}; keep rate {rate:g}"
    )
    console.print(table)
    for name, parts in {"Skim": ("speculator", "target"), "plain vLLM": ("plain vLLM",)}.items():
        used = [one for one in map(pools.get, parts) if one]
        if len(used) == len(parts):
            first = sum(one["wait_s"] + one["prefill_s"] for one in used) + machine.skim_s * (len(parts) - 1)
            gpus = sum(one["tensor_parallel"] * one["replicas"] for one in used)
            print_line(f"{name}: {gpus:g} GPU{'s' * (gpus != 1)}, the first token after {first:.2f} s.")
    length = f"from {sooner:,} tokens" if sooner else "at no length"
    print_line(f"One prompt alone: its first token is sooner with Skim {length}.")
    print_line("By formula, with efficiencies measured on an H200; docs/plan.md says how sure each number is.")
    if json_file is not None:
        write_json(json_file, {"gpu": machine.name, "keep_rate": rate, "pools": pools, "pays_from_tokens": sooner})
        print_line(f"Wrote {json_file}")
