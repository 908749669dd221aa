"""The measurement behind `skim bench agents`: ask the turns of an agent's conversations in each mode, and score."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from evals.agents.bfcl import ANSWER, bfcl_conversations
from evals.agents.conversation import make_conversations
from evals.agents.engines import MODES, AgentEngines
from evals.agents.families import AGENTS, describe_family
from evals.agents.results import describe, plot, table
from evals.run.ask import load_tokenizer, model_name
from evals.run.conversations import ask_conversations, given_answers, scored
from evals.run.journal import Journal
from evals.tasks.registry import Sample
from router.options.request import PrefillOptions
from skim_common.errors import SkimError

__all__ = ["describe", "plot", "run", "table"]

LOOK_AHEAD = PrefillOptions().look_ahead


@dataclass(frozen=True)
class AgentSettings:
    """families: names of AGENTS. turns: of each conversation. length: tokens of the first asked
    prompt; with bfcl, of the longest. conversations: of each family. bfcl: the folder of the package bfcl_eval, whose
    conversations are asked in place of the families. journal: the file of `evals.run.journal`.
    """

    target: str
    speculator: str
    families: Sequence[str] = tuple(AGENTS)
    turns: int = 8
    length: int = 3500
    conversations: int = 8
    seed: int = 0
    bfcl: Path | None = None
    engine: str = "vllm"
    journal: Path | None = None
    target_options: Mapping[str, Any] = field(default_factory=dict)
    speculator_options: Mapping[str, Any] = field(default_factory=dict)

    def in_results(self) -> dict[str, Any]:
        """The settings without names of folders and files."""
        hidden = {"target": model_name(self.target), "speculator": model_name(self.speculator)}
        unused = {"journal", "bfcl", *(("families", "turns", "seed") if self.bfcl is not None else ())}
        return {name: value for name, value in (asdict(self) | hidden).items() if name not in unused}


def run(settings: AgentSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `samples`: the scores of each asked turn, those of a conversation with its seed and in its order.

    The result also has the descriptions of `tasks` and `selectors`, the machine and the settings. Raises SkimError.
    """
    if unknown := [name for name in settings.families if name not in AGENTS]:
        raise SkimError(f"unknown family {unknown[0]!r}: choose from {', '.join(AGENTS)}")
    conversations = _conversations(settings)
    found = settings.in_results()
    target = {name: found[name] for name in ("target", "engine", "target_options")}
    selection = {name: found[name] for name in ("speculator", "speculator_options")}
    journal = Journal(settings.journal, target, selection | {"defaults": PrefillOptions().model_dump()})
    began = machine()
    progress("starting the engines", 0)
    asker = AgentEngines(
        settings.target,
        settings.speculator,
        engine=settings.engine,
        keep_rates=(),
        look_ahead=LOOK_AHEAD,
        max_tokens=max(sample.max_tokens or ANSWER for sample in chain(*conversations)),
        target_options=settings.target_options,
        speculator_options=settings.speculator_options,
    )
    asyncio.run(_ask(asker, conversations, journal, progress))
    samples = list(chain(*conversations))
    given = given_answers(samples, journal, asker.cases)
    return {
        "machine": began,
        "settings": found,
        "selectors": dict(MODES),
        "tasks": {task: describe_family(task) for task in dict.fromkeys(sample.task for sample in samples)},
        "samples": [scored(sample, answers) for sample, answers in zip(samples, given, strict=True)],
    }


async def _ask(asker: AgentEngines, conversations: list[list[Sample]], journal: Journal, progress: Progress) -> None:
    try:
        await ask_conversations(asker, conversations, journal, progress)
    finally:
        await asker.close()


def _conversations(settings: AgentSettings) -> list[list[Sample]]:
    """They are made before an engine starts, so that a wrong setting is reported at once."""
    tokenizer = load_tokenizer(settings.target)

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    if settings.bfcl is not None:
        return list(bfcl_conversations(settings.bfcl, settings.conversations, settings.length, tokens))
    families = {name: AGENTS[name] for name in settings.families}
    size = settings.turns, settings.length, settings.conversations
    return list(make_conversations(families, *size, seed=settings.seed, tokens=tokens))
