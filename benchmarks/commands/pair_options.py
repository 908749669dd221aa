"""Options of the commands that start a target and a speculator: their types, texts and limits."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from skim_common.errors import SkimError

Target = Annotated[Path, typer.Option(metavar="MODEL", help="Target: a folder, or owner/name@revision.")]
Speculator = Annotated[Path, typer.Option(metavar="MODEL", help="Speculator: a folder, or owner/name@revision.")]
_RANDOM = "The default is a model of random weights."
TargetOrRandom = Annotated[
    Path | None, typer.Option(metavar="MODEL", help=f"Target: a folder, or owner/name@revision. {_RANDOM}")
]
SpeculatorOrRandom = Annotated[
    Path | None, typer.Option(metavar="MODEL", help=f"Speculator: a folder, or owner/name@revision. {_RANDOM}")
]
Engine = Annotated[str, typer.Option(metavar="vllm|mock", help="Engine of both models.")]
TargetOptions = Annotated[str, typer.Option(metavar="JSON", help="Engine options of the target.")]
SpeculatorOptions = Annotated[str, typer.Option(metavar="JSON", help="Engine options of the speculator.")]
AnswerTokens = Annotated[int, typer.Option(min=2, help="Largest number of tokens per answer.")]
KeepRate = Annotated[float, typer.Option(help="Share of the prompt that the speculator keeps.")]
Drafts = Annotated[int, typer.Option(min=1, max=16, help="Number of drafts per verification (K).")]
IgnoreEos = Annotated[bool, typer.Option(help="Continue decoding after an end token.")]
Dtype = Annotated[Literal["float32", "bfloat16"], typer.Option(help="Number format of all engines.")]
ScoreQueries = Annotated[
    Literal["look_ahead", "question", "both"], typer.Option(help="Whose queries score the prompt (score_queries).")
]
Journal = Annotated[
    Path | None,
    typer.Option(metavar="FILE.jsonl", help="Keep results here; a run that is cut off goes on with the same file."),
]
Documents = Annotated[
    Literal["demo", "code"],
    typer.Option(help="Prompts: questions of the demo pair, or Python code to explain, for real models."),
]


def both_or_neither(target: Path | None, speculator: Path | None) -> None:
    """Raise SkimError if only one of the two models is given."""
    if (target is None) != (speculator is None):
        raise SkimError("give both --target and --speculator, or neither to use models of random weights")
