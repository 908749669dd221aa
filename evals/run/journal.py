"""The answers of a run in a file, so that a run that is cut off goes on, and dense answers are made once.

The first line names what all answers depend on (the target and how it answers); each other line holds the answers or
the timings of one sample.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from benchmarks.harness.json_lines import JsonLines
from evals.run.ask import Answer, Case, Timing
from evals.selection.selectors import DENSE
from evals.tasks.registry import Sample


class Journal:
    """The answers to samples by case. Without a file they are kept in memory alone."""

    def __init__(self, path: Path | None, target: Mapping[str, Any], selection: Mapping[str, Any]) -> None:
        """path: read if it exists, else created. target: what all answers depend on; JSON values. selection: what the
        selectors depend on too; answers that were selected otherwise are asked again, dense ones are not.

        Raises SkimError for a file of another target, and for one that is no journal.
        """
        self._selection = _digest(selection)
        self._answers: dict[tuple[str, str], dict[Case, Answer]] = defaultdict(dict)
        self._timings: dict[tuple[str, str], list[Timing]] = {}
        self._file = JsonLines(path, {"target": dict(target)}, "--resume", self._take)

    def answers(self, sample: Sample) -> dict[Case, Answer]:
        """The answers to a sample that are known."""
        return dict(self._answers.get(_key(sample), {}))

    def timings(self, sample: Sample) -> list[Timing]:
        """The timings of a sample; empty if it was not timed."""
        return self._timings.get(_key(sample), [])

    def add(self, sample: Sample, answers: Mapping[Case, Answer]) -> None:
        """Keep further answers to a sample."""
        self._answers[_key(sample)].update(answers)
        if answers:
            self._write(sample, answers=[[*case, a.text, a.read, a.prompt] for case, a in answers.items()])

    def add_timings(self, sample: Sample, timings: Sequence[Timing]) -> None:
        """Keep the timings of a sample."""
        self._timings[_key(sample)] = list(timings)
        self._write(sample, timings=[astuple(timing) for timing in timings])

    def _write(self, sample: Sample, **content: Any) -> None:
        name, prompt = _key(sample)
        self._file.append({"sample": name, "prompt": prompt, "selection": self._selection, **content})

    def _take(self, line: dict[str, Any]) -> None:
        key, same = (line["sample"], line["prompt"]), line["selection"] == self._selection
        for name, rate, *answer in line.get("answers", []):
            if same or name == DENSE:
                self._answers[key][name, rate] = Answer(*answer)
        if same and "timings" in line:
            self._timings[key] = [Timing(*timing) for timing in line["timings"]]


def _key(sample: Sample) -> tuple[str, str]:
    """The sample's seed and a digest of its messages: a changed task is asked again."""
    return sample.seed + f" {sample.task}", _digest(sample.messages)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
