"""What the worker of a target with remote drafts tells the scheduler after each step (V2 model runner only)."""

from dataclasses import dataclass

REPORT = "skim_draft_report"
"""Attribute of ModelRunnerOutput with the DraftReport of the step."""


@dataclass(frozen=True, slots=True)
class DraftReport:
    """From the worker to the scheduler, by request id.

    verified: drafts that the step verified, without masked places. wanted: places to reserve in the step after the
    next one.
    """

    verified: dict[str, int]
    wanted: dict[str, int]
