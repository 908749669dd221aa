"""`skim heads`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cluster.commands.flags import quick_start, read_options
from cluster.commands.output import console, print_line
from skim_common.errors import SkimError
from skim_common.models.info import inspect_model
from skim_common.models.source import located
from speculator_service.model import model_fingerprint


def heads(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Speculator: a folder, or owner/name@revision.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.json",
            help="Write the profile here. Default: where speculators look for it.",
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Measure what the heads find beyond words, on questions as of `skim bench questions`. A speculator"
            " that has a profile keeps its heads.",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Most questions of each set.")] = 50,
    speculator_options: Annotated[
        str, typer.Option(metavar="JSON", help='Options of its engine, such as {"dtype": "float32"}.')
    ] = "{}",
) -> None:
    """Find the retrieval heads of a speculator, by which it reads prompts in windows.

    A speculator that starts finds them by itself. This command is for a file that other machines get, and it measures
    what they earn: with `selector: auto`, a speculator that finds more than words reads every prompt.
    """
    from rich.progress import Progress

    from evals.questions.kept import QuestionsSettings, drawn, gain_over_words
    from evals.run.ask import load_tokenizer
    from speculator_service.engine import create_engine
    from speculator_service.scoring.heads import HeadProfile, profile_of, save, saved_file
    from speculator_service.start.find_heads import find_heads

    options = quick_start("vllm") | read_options(speculator_options, "--speculator-options")
    if output is None:
        saved_file("")  # a user without a home is told before the work
    place = located(str(model), Path.cwd())
    info = inspect_model(place, engine="vllm")
    model_fingerprint(info)
    asked = [] if questions is None else drawn(QuestionsSettings(place, questions, prompts=prompts))
    profile = profile_of(info, options.get("head_profile")) if asked else None
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("starting the speculator", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description="reading prompts")

        engine = create_engine("vllm", place, options=options)

        async def measured() -> HeadProfile | None:
            found = profile or await find_heads(engine, place, show)  # type: ignore[arg-type]  # vLLM's engine
            if found is None or not asked:
                return found
            gain = await gain_over_words(engine, load_tokenizer(place), asked, show)
            return found.model_copy(update={"gain_over_words": round(gain, 3)})

        try:
            profile = asyncio.run(measured())
        finally:
            engine.close()
    if profile is None:
        raise SkimError(f"no heads of {model} find what a question asks for, so it has no head profile")
    file = output or saved_file(profile.fingerprint)
    save(profile, file)
    weights = ", ".join(f"({head.layer}, {head.head}) {head.weight:g}" for head in profile.heads)
    print_line(f"Heads of {profile.model} (layer, head) with their weights: {weights}")
    if profile.gain_over_words is not None:
        print_line(f"Evidence over that of words alone, {len(asked)} questions: {profile.gain_over_words:+.3f}")
    print_line(f"Wrote {file}")
