"""Progress lines at intervals, for a terminal and for the log of a job."""

import time
from collections.abc import Callable

from cluster.batch.worker import PartReport

EVERY_S = 5.0


class Progress:
    """Counts the rows of reports and prints progress. before: rows that earlier runs have done."""

    def __init__(self, rows: int, before: int, print_line: Callable[[str], None]) -> None:
        self._rows, self.done, self._before, self._print_line = rows, before, before, print_line
        self.failed = self._prompt_tokens = self._answer_tokens = 0
        self.start()

    def start(self) -> None:
        """Start to measure rates; the time before was start-up."""
        self._start = self._last = time.monotonic()

    def add(self, report: PartReport) -> None:
        """Count one part. Prints a progress line at most every EVERY_S seconds, and one at the end."""
        self.done += report.rows
        self.failed += report.failed
        self._prompt_tokens += report.prompt_tokens
        self._answer_tokens += report.answer_tokens
        now = time.monotonic()
        if self.done == self._rows or now - self._last >= EVERY_S:
            self._last = now
            self._print_line(self._line(max(now - self._start, 1e-3)))

    def _line(self, seconds: float) -> str:
        """Errors and rates are those of this run alone."""
        rate = (self.done - self._before) / seconds
        read, written = self._prompt_tokens / seconds, self._answer_tokens / seconds
        return (
            f"{self.done}/{self._rows} rows, {self.failed} errors, {rate:.1f} rows/s, tokens/s: {read:,.0f} read, "
            f"{written:,.0f} written; about {(self._rows - self.done) / rate:,.0f} s left"
        )
