"""A measurement with the speculator alone: one item after another, with a journal for a run that is cut off."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.harness.json_lines import JsonLines
from benchmarks.report.progress import Progress
from evals.run.ask import model_name
from speculator_service.engine import SpeculatorEngine, create_engine

Key = TypeVar("Key", int, str)
Item = TypeVar("Item")


class Settings(Protocol):
    """What all of these measurements have. journal: None keeps nothing."""

    @property
    def speculator(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def journal(self) -> Path | None: ...


async def measured(
    settings: Settings,
    command: str,
    head: Mapping[str, Any],
    items: Mapping[Key, Item],
    measure: Callable[[SpeculatorEngine, Item], Awaitable[Any]],
    progress: Progress,
) -> dict[Key, Any]:
    """What `measure` gives for each item, a JSON value, by its key. Those in the journal are not measured again.

    command: that writes the journal, for an error. head: besides speculator, engine and options, what all results
    depend on. Raises SkimError for a journal with another head, and for an engine that does not start.
    """
    known: dict[Key, Any] = {}
    common: dict[str, Any] = {
        "speculator": model_name(settings.speculator),
        "engine": settings.engine,
        "options": dict(settings.options),
    }
    journal = JsonLines(
        settings.journal, {**common, **head}, command, lambda line: known.update({line["item"]: line["found"]})
    )
    missing = [key for key in items if key not in known]
    if not missing:
        return known
    progress("starting the speculator", 0)
    engine = create_engine(settings.engine, settings.speculator, options=dict(settings.options))
    try:
        for key in missing:
            progress(f"{len(known) + 1} of {len(items)} prompts", len(known) / len(items))
            known[key] = await measure(engine, items[key])
            journal.append({"item": key, "found": known[key]})
    finally:
        engine.close()
    return known
