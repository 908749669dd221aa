"""`skim eval`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.output import JsonFile, PlotFile, measure
from skim_common.errors import SkimError


def evaluate(
    target: Annotated[
        Path,
        typer.Option(
            metavar="MODEL",
            help="Target: a folder, or owner/name@revision. With --endpoint, only its tokenizer is used.",
        ),
    ],
    speculator: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Speculator, in the same form. Not with --endpoint.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send the prompts to this Skim endpoint, instead of starting two engines."),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ask the questions of this JSONL file about your own texts, in place of the tasks. --samples is then"
            " their number per set.",
        ),
    ] = None,
    keep_rates: Annotated[
        str | None,
        typer.Option(
            metavar="RATE[,RATE...]",
            help="Shares of the prompt to keep. Dense is always measured. The default is 0.05,0.1,0.2,0.3,0.5,1; with"
            " --questions it is what Skim chooses itself, which is always measured then.",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="TASK[,TASK...]",
            help="Names of tasks, or of families such as ruler. The default is all tasks.",
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens. The default is 1024,4096.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of prompts per task and length.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    style: Annotated[
        str,
        typer.Option(
            metavar="instruct|plain", help="instruct: prompts with instructions. plain: without, for the demo pair."
        ),
    ] = "instruct",
    look_ahead: Annotated[
        int, typer.Option(min=1, max=64, help="Number of look-ahead tokens whose queries score the prompt.")
    ] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens per answer.")] = 64,
    engine: Annotated[
        str, typer.Option(metavar="vllm|mock", help="Engine of both models. Not with --endpoint.")
    ] = "vllm",
    concurrency: Annotated[int, typer.Option(min=1, help="Number of prompts that run at the same time.")] = 4,
    target_options: Annotated[
        str, typer.Option(metavar="JSON", help="Engine options of the target. Not with --endpoint.")
    ] = "{}",
    speculator_options: Annotated[
        str, typer.Option(metavar="JSON", help="Engine options of the speculator. Not with --endpoint.")
    ] = "{}",
    turns: Annotated[
        int,
        typer.Option(
            min=1,
            max=16,
            help="Ask so many questions about each document, in one conversation, in place of the tasks.",
        ),
    ] = 1,
    about: Annotated[
        str,
        typer.Option(
            metavar="records|code",
            help="Documents of --turns: records among other sentences, or functions of Python's library.",
        ),
    ] = "records",
    selectors: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[;NAME...]",
            help="Names of selectors to compare. The default is all of them. `default;BM25`: Skim without an option,"
            " and BM25 with as many tokens.",
        ),
    ] = None,
    timed: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of prompts whose cases are timed, alone and with cold caches; they are spread over the tasks"
            " and lengths. With it, the result shows quality over time for each family of tasks.",
        ),
    ] = 0,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Keep the answers in this file, and ask only for those that it does not hold yet."
        ),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a page of each answer to serving's own selection that is worse than the dense answer: what was"
            " kept of the prompt, with scores.",
        ),
    ] = None,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Answer quality beside simpler selections, on generated tasks or on questions about your own texts."""
    from cluster.commands.flags import read_options
    from evals.questions import results as question_results
    from evals.results import families as family_results
    from evals.results import keep_rates as results
    from evals.results import published
    from evals.run import run
    from evals.tasks.registry import TASKS, expanded

    if style not in ("instruct", "plain"):
        raise SkimError(f"--style is instruct or plain, not {style}")
    if about not in ("records", "code"):
        raise SkimError(f"--about is records or code, not {about}")
    if questions is not None and (tasks is not None or lengths is not None):
        raise SkimError("--questions takes the place of the tasks: omit --tasks and --lengths")
    rates = keep_rates or ("0.05,0.1,0.2,0.3,0.5,1" if questions is None else "1")
    settings = run.EvalSettings(
        target=str(target),
        speculator=None if speculator is None else str(speculator),
        endpoint=endpoint,
        keep_rates=values(rates, float, "--keep-rates"),
        tasks=tuple(TASKS) if tasks is None else expanded(values(tasks, str, "--tasks")),
        lengths=values(lengths or "1024,4096", int, "--lengths"),
        samples=samples,
        seed=seed,
        style=style,  # type: ignore[arg-type]
        look_ahead=look_ahead,
        max_tokens=max_tokens,
        engine=engine,
        concurrency=concurrency,
        turns=turns,
        about=about,  # type: ignore[arg-type]
        selectors=tuple(dict.fromkeys(name.strip() for name in (selectors or "").split(";") if name.strip())),
        timed=timed,
        resume=resume,
        explain=explain,
        questions=questions,
        target_options=read_options(target_options, "--target-options"),
        speculator_options=read_options(speculator_options, "--speculator-options"),
    )
    results_module: Any = question_results if questions is not None else published if settings.by_ways else results
    measure(family_results if timed else results_module, lambda report: run.run(settings, report), json_file, plot_file)
