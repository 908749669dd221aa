"""The section of a soak run (`python -m tests.soak --out FILE`): what clients saw, and what processes use."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import plots

KINDS = {
    "wrong": "wrong",
    "hung": "without an end",
    "refused": "refused (429 or 503)",
    "broken": "ended with an error",
    "lost": "without a connection",
    "left": "ended by the client",
}
"""By the kinds of `tests.soak.load.Seen`, in the order of the sentence, which begins with `answered`."""


FAILED = ("refused", "broken", "lost")
"""The kinds that no client may see while something is left that could answer."""


def describe(result: dict[str, Any]) -> str:
    """Load, cases and answers, in sentences."""
    settings, rounds = result["settings"], result["rounds"]
    answers = _answers(rounds)
    asked = sum(answers.values())
    others = ", ".join(f"{answers[kind]:,} {words}" for kind, words in KINDS.items())
    cases = Counter(found["case"] for found in rounds)
    told = "; ".join(f"{case} ({count})" if count > 1 else case for case, count in sorted(cases.items()))
    seen = [f"{found['case']}: {finding}" for found in rounds for finding in found["findings"]]
    return (
        f"{_load(settings)} {len(rounds)} rounds in {settings['minutes']:g} minutes: parts are killed, stopped and kept"
        " from starting. Each answer is compared with that of the undisturbed"
        f" deployment. Of {asked:,} requests {answers['answered']:,} had the right answer; {others}. {_failed(rounds)}"
        f" Findings: {'; '.join(seen) or 'none'}. Cases: {told}. *Memory*: what only these processes use, after a"
        " warm-up, with the load paused. *Growth*: within a process, by least squares; killed processes are replaced,"
        " so that begin and end need not be of the same ones. *Descriptors*: the fewest after a round, begin:"
        " in the first third of the run, end: in the last third."
    )


def _load(settings: dict[str, Any]) -> str:
    return (
        f"Requests to mock engines arrive at random times (Poisson), {settings['rate_per_s']:.1f} per second:"
        f" {settings['load']:.0%} of the {settings['sustainable_per_s']:.1f} that this deployment answered per second"
        f" before, when {settings['clients']} clients asked without a pause."
    )


def _failed(rounds: Sequence[dict[str, Any]]) -> str:
    """What failed, by whether something was left that could answer."""
    parts = []
    for could, words in ((True, "something was left that could answer"), (False, "nothing was left")):
        some = [found for found in rounds if found["could_answer"] == could]
        answers = _answers(some)
        failed = sum(answers[kind] for kind in FAILED)
        parts.append(f"in the {len(some)} rounds in which {words}, {failed:,} of {sum(answers.values()):,} failed")
    return f"{parts[0][0].upper()}{parts[0][1:]}; {parts[1]}."


def _answers(rounds: Sequence[dict[str, Any]]) -> Counter[str]:
    answers: Counter[str] = Counter()
    for found in rounds:
        answers.update(found["answers"])
    return answers


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per kind of process."""
    columns = ["processes", "number", "MiB, begin", "MiB, end", "growth, MiB/min", "descriptors, begin", "end"]
    return columns, [
        [
            kind,
            f"{used['end']['processes']}",
            f"{used['begin']['mib']:,.0f}",
            f"{used['end']['mib']:,.0f}",
            "" if used["mib_per_minute"] is None else f"{used['mib_per_minute']:+.2f}",
            f"{used['begin']['descriptors']:,}",
            f"{used['end']['descriptors']:,}",
        ]
        for kind, used in result["usage"].items()
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """Memory by kind of process over the run."""
    rounds = result["rounds"]
    minutes = [found["at_s"] / 60 for found in rounds]
    kinds = sorted(result["usage"], key=lambda kind: -result["usage"][kind]["end"]["mib"])[: len(plots.COLOURS)]
    with plots.figure(path, result) as [axes]:
        for kind in kinds:
            memory = [found["usage"].get(kind, {}).get("mib", 0.0) for found in rounds]
            axes.plot(minutes, memory, label=kind)
        axes.set(xlabel="minutes", ylabel="MiB", ylim=(0, None))
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
