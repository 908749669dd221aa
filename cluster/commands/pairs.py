"""`skim pairs`: the speculators on this machine that fit a target."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from cluster.commands.output import console, print_line, write_result
from skim_common.errors import SkimError


def pairs(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A folder, or owner/name@revision.")],
    among: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Also try the model in this folder, or those in its folders. Repeatable."),
    ] = None,
    keep_rate: Annotated[float, typer.Option(min=0.001, max=1.0, help="Share of the prompt to keep, in (0, 1].")] = 0.2,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Say which models on this machine can be the speculator of a target: tokenizers, cost, context length.

    The candidates are the models in the cache of the hub's client and in the folders of --among. Only configs and
    tokenizers are read. The check is that of `skim serve`. docs/models.md has the known families.
    """
    result = _checked(target, among or [], keep_rate)
    write_result(result, json_file)


def _checked(target: Path, among: list[Path], keep_rate: float) -> dict[str, Any]:
    from cluster.plan.candidates import in_cache, in_folders
    from cluster.plan.fit import best_first, fit, is_same, read_target
    from skim_common.models.source import local_folder, located

    name = located(str(target), Path.cwd())
    own = read_target(name, local_folder(name, weights=False))
    others = [candidate for candidate in [*in_folders(among), *in_cache()] if not is_same(candidate, own)]
    if not others:
        raise SkimError("there is no other model on this machine: name folders with --among, or download a speculator")
    fits = []
    with Console(stderr=True).status("") as status:
        for candidate in others:
            status.update(f"checking {candidate.name}")
            fits.append(fit(candidate, own, keep_rate))
    fits = best_first(fits)
    result = {"target": asdict(own), "keep_rate": keep_rate, "speculators": [_as_json(one) for one in fits]}
    _show(result)
    return result


def _as_json(one: Any) -> dict[str, Any]:
    return asdict(one) | {"first": {str(tokens): shares._asdict() for tokens, shares in one.first.items()}}


def _show(result: dict[str, Any]) -> None:
    from cluster.plan.fit import LENGTHS

    target, size = result["target"], result["target"]["size"]
    print_line(f"Target {target['name']}: {_parameters(size)} parameters, {size['positions']} tokens")
    lengths = [f"{tokens // 1024}k" for tokens in LENGTHS]
    right = [Column(name, justify="right", no_wrap=True) for name in ("size", "cost", *lengths, "tokens")]
    table = Table(
        Column("speculator", overflow="fold"), "verdict", "tokenizer", *right, box=SIMPLE_HEAD, pad_edge=False
    )
    for one in result["speculators"]:
        cost = f"{one['cost']:.3f}" if one["cost"] is not None else ""
        tokens = str(one["size"]["positions"]) if one["size"] else ""
        whole, windows = ([f"{first[read]:.2f}" for first in one["first"].values()] for read in ("whole", "windows"))
        cells = (one["verdict"], one["tokenizer"] or "", _parameters(one["size"]), cost)
        table.add_row(Text(one["name"]), *cells, *(whole or [""] * len(lengths)), tokens)
        if windows:
            table.add_row("(windows)", *[""] * len(cells), *windows)
    console.print(table)
    for one in result["speculators"]:
        if one["reason"]:
            print_line(one["reason"] if one["name"] in one["reason"] else f"{one['name']}: {one['reason']}")
    print_line(
        "\ncost: parameters that compute a prompt token, as a share of the target's."
        f" {', '.join(lengths)}: operations to the first token of a prompt of this length with keep rate"
        f" {result['keep_rate']:g}, as a share of a dense prefill's. The second line is for `read: windows`, with"
        " its second read; else the speculator reads the prompt as a whole. The quality of the selection is not"
        " checked: measure it with `skim eval`. `skim plan size` gives times on GPUs."
    )


def _parameters(size: dict[str, int | None] | None) -> str:
    count = size["parameters"] if size else None
    if not count:
        return ""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"
