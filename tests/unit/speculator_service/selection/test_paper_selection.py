"""What granularity chunk and token select: bit for bit what they selected before there were units of text."""

from hashlib import sha256

import numpy as np
import pytest

from kv_transfer.options import AUTO, SelectionOptions
from speculator_service.selection import extension
from speculator_service.selection.extension import KnownPrefix, Prompt, extend
from speculator_service.selection.select import select
from tests.unit.kv_transfer.layouts import layout_of

RULES = (
    {"keep_rate": 0.07},
    {"keep_rate": 0.3},
    {"keep_rate": 0.2, "coverage": 0.6},
    {"keep_rate": AUTO, "coverage": 0.5, "min_keep": 0.1},
    {"keep_rate": AUTO, "coverage": 0.75, "min_keep": 0.1, "max_keep": 0.15},
)


def peaked(rng: np.random.Generator, tokens: int, peaks: np.ndarray) -> np.ndarray:
    """Scores [M] that are high around `peaks`. Quantised: many ties, and sums that no order of addition changes."""
    importance = (rng.integers(0, 12, tokens) / 64).astype(np.float32)
    for peak in peaks:
        importance[peak : peak + 24] += rng.integers(8, 40) / 8
    return importance


def digest(granularity: str, size: int, problems: int = 40) -> tuple[str, str]:
    """Of what random prompts keep, each selected alone and as the next turn of an earlier prompt: positions, coverages,
    and what was reused and appended."""
    alone, extended = sha256(), sha256()
    for number in range(problems):
        rng = np.random.default_rng(number)
        tokens = int(rng.integers(1500, 3000))
        common = tokens - int(rng.integers(60, 400))
        places = rng.choice(np.arange(64, common - 64, 40), 14, replace=False)
        first, second = (peaked(rng, tokens, some) for some in (places[:11], places[3:]))
        spans = [(0, 20), (common - 30, common), (tokens - 40, tokens)]
        regions = [(300, 460, 0.4), (700, 820, 0.03)][: number % 3]
        layout = layout_of(spans, regions, (tokens - 40, tokens))
        for rule in RULES:
            options = SelectionOptions.model_validate({**rule, "granularity": granularity, "chunk_size": size})
            before = [region for region in regions if region[1] <= common]
            of_first = select(first[:common], options, layout_of(spans[:2], before))[0]
            earlier = of_first.astype(np.int32)
            chosen, coverage = select(second, options, layout)
            alone.update(chosen.tobytes() + np.float64(round(coverage, 9)).tobytes())
            fresh = chosen.astype(np.int32)
            kept = extend(Prompt(second, fresh, options, layout), KnownPrefix(earlier, common, common))
            extended.update(kept.positions.tobytes() + np.array([kept.reused, kept.late, kept.compacted]).tobytes())
    return alone.hexdigest()[:16], extended.hexdigest()[:16]


@pytest.mark.parametrize(
    ("granularity", "size", "golden"),
    [
        ("chunk", 32, ("41a156175547de34", "443c6eb5ca87fab1")),
        ("chunk", 20, ("29ca403260d0936f", "d3c40da0f95eb095")),
        ("chunk", 300, ("643e20246c6fe11f", "7bcb7abc9369ce0d")),
        ("token", 32, ("5222f91763f327cc", "cd219aa8521ecdb7")),
    ],
)
def test_selects_what_it_always_did(granularity: str, size: int, golden: tuple[str, str]) -> None:
    """The digests were made by earlier code: of each pair the first one before there were units of text, and the second
    one before there were links, or of chunks without a test for torn text."""
    assert digest(granularity, size) == golden


@pytest.mark.parametrize(("name", "value"), [("LATE_TOKENS", 160), ("LATE_SHARE", 0.25), ("GROWTH", 1.05)])
def test_another_rule_has_another_digest(monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    """Negative control: the digests see the rules of late chunks."""
    rule = digest("chunk", 32, 15)
    monkeypatch.setattr(extension, name, value)
    other = digest("chunk", 32, 15)
    assert other[0] == rule[0]
    assert other[1] != rule[1]
