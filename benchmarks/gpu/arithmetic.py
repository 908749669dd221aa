"""The first token by arithmetic, beside what was measured: the formulas of `skim plan` with the presets' shapes.

Their efficiencies are those of an earlier run on an H200 without CUDA graphs (`cluster.plan`).
"""

from dataclasses import dataclass, replace
from typing import Any, Self

from cluster.plan import GPUS, Model, PlannedEngine
from skim_common.models.costs import Read

PARTS = {"dense": "dense_ms", "read": "speculate_ms", "kept": "prefill_ms"}
"""The parts of the arithmetic, and what is measured of each."""
FAR = 1.3
"""Measured and expected times that differ by more than this factor need a reason."""


@dataclass(frozen=True)
class Arithmetic:
    """target, speculator: engines on the GPU."""

    target: PlannedEngine
    speculator: PlannedEngine

    @classmethod
    def of(cls, target: dict[str, Any], speculator: dict[str, Any], gpu: str | None) -> Self | None:
        """For these shapes (config.json) on the GPU that torch calls `gpu`; None if the plan does not know it."""
        known = next((GPUS[name] for name in GPUS if gpu and name.upper() in gpu.upper()), None)
        if known is None:
            return None
        return cls(*(PlannedEngine(_model(config), known) for config in (target, speculator)))

    def expected(self, tokens: int, kept: int, window: int | None) -> dict[str, float]:
        """Milliseconds of the dense prompt, of the speculator's read, of the kept tokens and of Skim, and dense ÷ Skim.

        window: tokens of a window; None if the prompt is read as a whole.
        """
        speculator = replace(self.speculator, windows=True, window=window) if window else self.speculator
        read = speculator.select_s(Read(tokens))
        dense, rest = (self.target.read_s(Read(size)) for size in (tokens, kept))
        skim = read + rest + self.target.machine.skim_s
        seconds = {"dense": dense, "read": read, "kept": rest, "skim": skim}
        return {**{f"{name}_ms": 1e3 * value for name, value in seconds.items()}, "dense_to_skim": dense / skim}


def reason(row: dict[str, Any]) -> str:
    """Where the arithmetic and the measured ratio of a row differ by more than FAR: which parts took how many times as
    long as expected. Empty where they agree, or where there is no arithmetic.
    """
    expected = row.get("expected")
    if not expected or 1 / FAR <= row["dense_to_skim"]["median"] / expected["dense_to_skim"] <= FAR:
        return ""
    found = {name: row[measured] / expected[f"{name}_ms"] for name, measured in PARTS.items()}
    beside = row["skim_ms"] - row["speculate_ms"] - row["prefill_ms"]
    parts = ", ".join(f"{name} {ratio:.2f} times the expected time" for name, ratio in found.items())
    return f"{parts}, {beside:.0f} ms beside both engines"


def _model(config: dict[str, Any]) -> Model:
    from transformers import AutoConfig

    return Model.of("model", AutoConfig.for_model(**config).get_text_config())
