"""Runs steps, some of them at once, and keeps their results in one JSON file.

The file is complete at all times: it names every step, and it is replaced as a whole. If this process ends, the next
run goes on with the first step that has no result.
"""

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.steps.checks import FAIL, PASS, SKIP, Check, Settings, read_checks
from benchmarks.gpu.steps.step import ENVIRONMENT, ROOT, Step

TODO, RUNNING = "TODO", "RUNNING"
ON_CPU = 5
"""The limits of the steps are for a GPU. On CPU, where the proof is only tried, they are this many times longer."""
_POLL_S = 0.1

PrintLine = Callable[[str], None]


@dataclass
class Runner:
    """A run of `steps`. file: the JSON file. machine: of `benchmarks.report.machine`; its versions and GPU are part of
    what a result depends on. minutes: for all steps together; a step that does not fit any more stays TODO. jobs: how
    many steps run at once, except those that measure times. ended: called after each step, when its result is in the
    file.
    """

    steps: Sequence[Step]
    settings: Settings
    file: Path
    machine: Mapping[str, Any]
    minutes: float
    print_line: PrintLine = print
    jobs: int = 1
    ended: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._writing, self._stopped = threading.Lock(), threading.Event()
        known = self.machine.get("gpu"), self.machine.get("versions")
        self._digests = {step.name: step.digest(self.settings, *known) for step in self.steps}
        before = json.loads(self.file.read_text(encoding="utf-8")).get("steps", {}) if self.file.exists() else {}
        self._entries = {step.name: self._entry(step, before.get(step.name, {})) for step in self.steps}

    def run(self, only: Collection[str] = (), *, again: bool = False) -> bool:
        """Run the steps that have no result yet. Returns whether every step has one and none failed.

        only: names of the steps to run; all if empty. again: also run those that have a result.
        """
        ends = time.monotonic() + 60 * self.minutes
        self._write()
        asked = [step for step in self.steps if not only or step.name in only]
        for together in _batches(asked):
            with ThreadPoolExecutor(1 if together[0].alone else self.jobs) as pool:
                try:
                    list(pool.map(lambda step: self._unless_done(step, ends, again=again), together))
                except BaseException:
                    self._stopped.set()
                    raise
        wanted = [entry["status"] for name, entry in self._entries.items() if not only or name in only]
        self.print_line("\n" + ", ".join(f"{wanted.count(s)} {s}" for s in (PASS, FAIL, SKIP, TODO) if s in wanted))
        return all(status in (PASS, SKIP) for status in wanted)

    def _unless_done(self, step: Step, ends: float, *, again: bool) -> None:
        entry = self._entries[step.name]
        if entry["status"] in (PASS, FAIL, SKIP) and not again:
            self.print_line(f"{entry['status']}  {step.name}: done before, {entry['seconds']:.0f} s")
        elif (left := ends - time.monotonic()) <= 0:
            self.print_line(f"{TODO}  {step.name}: the {self.minutes:g} minutes are over")
        else:
            self.print_line(f"\n{step.name}: {step.shows}")
            self._run(step, left)

    def _entry(self, step: Step, before: Mapping[str, Any]) -> dict[str, Any]:
        """The step's entry in the file: that of an earlier run if nothing that it depends on has changed."""
        digest = self._digests[step.name]
        if before.get("digest") == digest and before.get("status") in (PASS, FAIL, SKIP):
            return dict(before)
        return {"shows": step.shows, "digest": digest, "status": TODO, "seconds": 0.0, "checks": []}

    def _run(self, step: Step, left: float) -> None:
        entry = self._entries[step.name]
        folder = self.file.with_suffix(".logs")
        folder.mkdir(parents=True, exist_ok=True)
        lines, log = folder / f"{step.name}.jsonl", folder / f"{step.name}.log"
        lines.unlink(missing_ok=True)
        entry |= {"status": RUNNING, "checks": []}
        self._write()
        limit = step.limit_s * (ON_CPU if self.settings.device == "cpu" else 1)
        began, told = time.monotonic(), 0

        def follow() -> list[Check]:
            nonlocal told
            found = read_checks(lines)
            for check in found[told:]:
                self.print_line(f"  {step.name}: {check}")
            if len(found) > told:
                entry["checks"] = [asdict(check) for check in found]
                self._write()
            told = len(found)
            return found

        ended = self._process(step, [str(lines)], log, min(limit, left), follow)
        checks, seconds = follow(), time.monotonic() - began
        cut = ended == "" and left < limit
        if cut:
            # The run's time was over, not the step's own: the next run repeats it.
            entry |= {"status": TODO, "seconds": seconds}
            self.print_line(f"  {step.name}: {TODO}  the {self.minutes:g} minutes are over")
        else:
            if ended is not None:
                says = ended or f"the step was ended after its limit of {limit:g} s"
                checks.append(Check("end", FAIL, None, says))
                self.print_line(f"  {step.name}: {checks[-1]}")
            elif not checks:
                checks.append(Check("end", FAIL, None, "the step ended without a check"))
                self.print_line(f"  {step.name}: {checks[-1]}")
            entry |= {"status": _status(checks), "seconds": seconds, "checks": [asdict(check) for check in checks]}
            if entry["status"] == FAIL:
                entry["log"] = _tail(log)
            self.print_line(f"  {entry['status']}  {step.name}, {seconds:.0f} s")
        self._write()
        self.ended()

    def _process(
        self, step: Step, arguments: list[str], log: Path, limit: float, follow: Callable[[], object]
    ) -> str | None:
        """Run the step's process. None if it ended well, "" if it was ended at its limit, otherwise what happened."""
        command = [sys.executable, "-m", "benchmarks.gpu.steps.child", step.function]
        command += [json.dumps(asdict(self.settings)), *arguments]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**ENVIRONMENT, **os.environ, "PYTHONPATH": paths, **step.environment}
        ends = time.monotonic() + limit
        with log.open("wb") as output:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
            )
            try:
                while child.poll() is None and time.monotonic() < ends:
                    follow()
                    if self._stopped.wait(_POLL_S):
                        raise InterruptedError(f"{step.name} was stopped")
                code = child.poll()
            finally:
                _end(child)
        if code is None:
            return ""
        if code == 0:
            return None
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        last = next(reversed(_tail(log)), "its log is empty")
        return f"the process ended with {how}: {last[:200]}"

    def journal(self) -> dict[str, Any]:
        """What is in the file."""
        return {
            "command": shlex.join(["python", "-m", "benchmarks.gpu", *sys.argv[1:]]),
            "machine": self.machine,
            "settings": asdict(self.settings),
            "status": _status([Check("", entry["status"], None, "") for entry in self._entries.values()]),
            "seconds": sum(entry["seconds"] for entry in self._entries.values()),
            "steps": self._entries,
        }

    def _write(self) -> None:
        with self._writing:
            making = self.file.with_name(self.file.name + ".new")
            making.write_text(json.dumps(self.journal(), indent=2) + "\n", encoding="utf-8")
            making.replace(self.file)


def _batches(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """`steps` in order, in groups that may run at once. A step that runs alone is a group of its own."""
    for alone, found in itertools.groupby(steps, key=lambda step: step.alone):
        group = list(found)
        yield from [[step] for step in group] if alone else [group]


def _status(checks: Sequence[Check]) -> str:
    """FAIL if one failed, TODO if one has no result yet, SKIP if all were skipped, otherwise PASS."""
    found = {check.status for check in checks}
    if FAIL in found:
        return FAIL
    if found & {TODO, RUNNING}:
        return TODO
    return SKIP if found == {SKIP} else PASS


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the process and everything that it started (`child`)."""
    assert child.stdin is not None
    child.stdin.close()
    child.wait()


def _tail(log: Path) -> list[str]:
    """The last lines of a log that are not empty, at most 40."""
    return [line.rstrip() for line in log.read_text(errors="replace", encoding="utf-8").split("\n") if line.strip()][
        -40:
    ]
