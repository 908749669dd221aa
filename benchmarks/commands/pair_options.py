"""Options of the commands that start a target and a speculator: their types, texts and limits.

The classes are groups of options (`cluster.commands.flags`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from skim_common.errors import SkimError
from skim_common.models.source import located

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


@dataclass(frozen=True)
class DemoPair:
    """The models of a benchmark, by default those of the demo."""

    target: Target = Path("demo_models/target")
    speculator: Speculator = Path("demo_models/speculator")

    @property
    def names(self) -> dict[str, Any]:
        """Fields of a benchmark's settings."""
        return {name: located(str(model), Path.cwd()) for name, model in vars(self).items()}


@dataclass(frozen=True)
class PairOrRandom:
    """The models of a benchmark, by default two of random weights."""

    target: TargetOrRandom = None
    speculator: SpeculatorOrRandom = None

    def names(self, layers: int | None = None) -> dict[str, Any]:
        """Fields of a benchmark's settings, `shapes` among them. layers: of a target of random weights."""
        from benchmarks.harness.models import TARGET, bench_pair

        both_or_neither(self.target, self.speculator)
        if self.target is not None:
            return {name: located(str(model), Path.cwd()) for name, model in vars(self).items()}
        pair = bench_pair(TARGET if layers is None else replace(TARGET, layers=layers))
        shapes = f" (random weights, {pair.target_shape} and {pair.speculator_shape})"
        return {"target": str(pair.target), "speculator": str(pair.speculator), "shapes": shapes}
