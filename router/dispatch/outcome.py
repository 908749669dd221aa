"""The router's metrics of each prompt: mode and reason, kept tokens, time to first token, migrations."""

from dataclasses import dataclass, field

from actors.observability.metrics import Meter
from kv_transfer.messages import Selection
from router.decision.cost_model import Estimate
from router.options.headers import TIMING_PARTS, TOTAL
from router.options.request import PrefillOptions
from router.pools.migration import Migration


@dataclass(slots=True)
class Outcome:
    """How one prompt of a request ran. timings: milliseconds by part.

    mode: dense or speculative; empty until decided. reason: in one word. answer_tokens: counted only if the request is
    traced. reused_tokens: as in Selection. estimate: the forecast that chose the mode; None if it was not chosen by
    time. guard: the kind of question for which the guard kept more; empty if it did not. lost_contents: as
    `PromptSpans.lost`. raised: as in Selection. admitted: a pool works on the prompt, and the target takes requests.
    shed: what the prompt did without because of the load (`router.admission.load_shedding`). spent_tokens: taken from
    the API key.
    """

    mode: str
    reason: str
    prompt_tokens: int
    kept_tokens: int
    options: PrefillOptions
    coverage: float = 1.0
    timings: dict[str, float] = field(default_factory=dict)
    answer_tokens: int = 0
    reused_tokens: int = 0
    estimate: Estimate | None = None
    guard: str = ""
    lost_contents: int = 0
    raised: float = 0.0
    admitted: bool = False
    shed: str = ""
    spent_tokens: int = 0

    @property
    def explained(self) -> str:
        """The reason with parameters, as an HTTP structured field (RFC 9651): both estimates in milliseconds, the kind
        of question for the guard, the number of contents that are kept because their place is unknown, what the
        acceptance of earlier drafts added to the coverage, and what was left out because of the load."""
        parameters = f";guard={self.guard}" if self.guard else ""
        parameters += f";unmapped={self.lost_contents}" if self.lost_contents else ""
        parameters += f";raised={self.raised:g}" if self.raised else ""
        parameters += f";shed={self.shed}" if self.shed else ""
        if self.estimate is None:
            return f"{self.reason}{parameters}"
        times = f";dense={self.estimate.dense:.0f};speculative={self.estimate.speculative:.0f}"
        return f"{self.reason}{times}{parameters}"

    def selected(self, selection: Selection, elapsed_ms: float) -> None:
        """Record a selection that arrived after `elapsed_ms`."""
        self.mode, self.kept_tokens = "speculative", int(selection.kept.token_ids.size)
        self.coverage, self.reused_tokens = selection.coverage, selection.reused_tokens
        self.raised = selection.raised
        self.timings |= dict(selection.timings)
        self.timings["transfer"] = max(0.0, elapsed_ms - sum(selection.timings.values()))

    def distrusted(self, reason: str) -> None:
        """The prompt runs dense after its selection. The times stay: the client waited for it."""
        self.mode, self.reason, self.kept_tokens = "", reason, self.prompt_tokens
        self.coverage, self.reused_tokens, self.raised = 1.0, 0, 0.0

    @property
    def keep_rate(self) -> float:
        """The share of the prompt that was kept, which can exceed the requested rate."""
        return self.kept_tokens / self.prompt_tokens


def record_decision(meter: Meter, outcome: Outcome) -> None:
    """Record a prompt when its mode is decided. A beam search records each of its steps."""
    meter.record("skim_router_requests_total", 1, mode=outcome.mode, reason=outcome.reason)
    meter.record("skim_router_prompt_tokens_total", outcome.prompt_tokens, mode=outcome.mode)
    meter.record("skim_router_kept_tokens_total", outcome.kept_tokens, mode=outcome.mode)
    if outcome.mode == "speculative":
        meter.record("skim_router_keep_rate", outcome.keep_rate)
        meter.record("skim_router_coverage", outcome.coverage)


def record_forecast(meter: Meter, outcome: Outcome, ms: float) -> None:
    """Record how right the forecast was that chose the mode. ms: from the choice until the first token."""
    if outcome.estimate is not None:
        ratio = outcome.estimate.of(outcome.mode) / max(ms, 1e-3)
        meter.record("skim_router_forecast_ratio", ratio, mode=outcome.mode)


def record_first_token(meter: Meter, outcome: Outcome, total_ms: float) -> None:
    """Record the times of a prompt. total_ms: from the request's arrival until the target's first output."""
    for part, ms in {**outcome.timings, TOTAL: total_ms}.items():
        if part in TIMING_PARTS or part == TOTAL:
            meter.record("skim_router_ttft_seconds", ms / 1e3, mode=outcome.mode, part=part)


def record_migration(meter: Meter, migration: Migration) -> None:
    """Record that a request goes to another target replica."""
    meter.record("skim_router_migrations_total", 1, cause=migration.cause)
    meter.record("skim_router_replayed_tokens_total", migration.answered)
