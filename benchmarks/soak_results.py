"""The section of a soak run (`python -m tests.chaos.soak --out FILE`): what clients saw, and what processes use."""

from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import plots

KINDS = {
    "wrong": "wrong",
    "hung": "without an end",
    "refused": "refused (429 or 503)",
    "broken": "ended with an error",
    "lost": "without a connection",
    "left": "ended by the client",
}
"""By the kinds of `tests.chaos.soak_load.Seen`, in the order of the sentence, which begins with `answered`."""


def describe(result: dict[str, Any]) -> str:
    """Load, cases and answers, in sentences."""
    settings, rounds = result["settings"], result["rounds"]
    answers: Counter[str] = Counter()
    for found in rounds:
        answers.update(found["answers"])
    asked = sum(answers.values())
    others = ", ".join(f"{answers[kind]:,} {words}" for kind, words in KINDS.items())
    cases = Counter(found["case"] for found in rounds)
    told = "; ".join(f"{case} ({count})" if count > 1 else case for case, count in sorted(cases.items()))
    seen = [f"{found['case']}: {finding}" for found in rounds for finding in found["findings"]]
    return (
        f"{settings['clients']} clients ask mock engines without a pause for {settings['minutes']:g} minutes, while"
        f" parts are killed, stopped and kept from starting: {len(rounds)} rounds. Each answer is compared with that of"
        f" the undisturbed deployment. Of {asked:,} requests {answers['answered']:,} had the right answer; {others}."
        " Requests may be refused or end early only in rounds in which nothing was left that could answer."
        f" Findings: {'; '.join(seen) or 'none'}. Cases: {told}. *Memory*: what only these processes use, after a"
        " warm-up, with the load paused. *Growth*: within a process, by least squares; killed processes are replaced,"
        " so that begin and end need not be of the same ones."
    )


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
