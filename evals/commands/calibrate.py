"""`skim calibrate`."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from benchmarks.commands.output import JsonFile, PlotFile, measure
from benchmarks.commands.pair_options import Engine, Journal, SpeculatorOptions, TargetOptions
from skim_common.errors import SkimError


def calibrate(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.yaml", help="Write the deployment file here.")
    ],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="A deployment file: its models, bounds and other settings.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Target: a folder, or owner/name@revision.")
    ] = None,
    speculator: Annotated[Path | None, typer.Option(metavar="MODEL", help="Speculator, in the same form.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help='Your prompts: {"messages": [...]} or {"prompt": "..."} on each line. Without it: generated ones.',
        ),
    ] = None,
    agreement: Annotated[
        float, typer.Option(help="Wanted mean agreement with the dense answers: token overlap, in (0, 1].")
    ] = 0.95,
    count: Annotated[int, typer.Option(min=1, help="Generated prompts for each of eight tasks.")] = 4,
    length: Annotated[int, typer.Option(min=64, help="Tokens of a generated prompt.")] = 2048,
    seed: Annotated[int, typer.Option(help="Seed of the generated prompts.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens per answer.")] = 48,
    journal: Journal = None,
    engine: Engine = "vllm",
    target_options: TargetOptions = "{}",
    speculator_options: SpeculatorOptions = "{}",
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Find how to score and how much to keep, for one pair and your own prompts."""
    from cluster.commands.flags import read_options
    from cluster.config.load import config_from_flags
    from evals.calibration import measure as calibration
    from kv_transfer.options import SelectionOptions

    deployment = config_from_flags(config, {"target.model": target, "speculator.model": speculator})
    settings = calibration.CalibrationSettings(
        target=deployment.target.model,
        speculator=deployment.speculator.model,
        selection=SelectionOptions(
            **{name: getattr(deployment.selection, name) for name in SelectionOptions.model_fields}
        ),
        prompts=prompts,
        agreement=agreement,
        count=count,
        length=length,
        seed=seed,
        max_tokens=max_tokens,
        engine=engine,
        journal=journal,
        target_options=read_options(target_options, "--target-options"),
        speculator_options=read_options(speculator_options, "--speculator-options"),
    )

    def run(report: Any) -> dict[str, Any]:
        result = calibration.run(settings, report)
        write_config(config, deployment.target.model, deployment.speculator.model, result, output)
        return result

    measure(calibration, run, json_file, plot_file)
    typer.echo(f"Wrote {output}")


def write_config(config: Path | None, target: str, speculator: str, result: dict[str, Any], output: Path) -> None:
    """Write the settings of `config`, if any, with the found ones, as a file that `skim serve` reads.

    Comments of `config` are not kept. Raises SkimError.
    """
    from cluster.config.load import read_settings

    settings = {} if config is None else read_settings(config)[0]
    for pool, model in (("target", target), ("speculator", speculator)):
        settings.setdefault(pool, {})["model"] = model
    settings["selection"] = {**(settings.get("selection") or {}), **result["selection"]}
    head = f"# Written by `skim calibrate` from {result['prompts']} prompts.\n"
    try:
        output.write_text(head + yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise SkimError(f"cannot write {output}: {error.strerror}") from None
