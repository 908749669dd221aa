"""A plan without a keep rate takes what the default keeps, as it was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.plan.kept import KEPT_BY_DEFAULT, kept_by_default
from evals.results import lengths
from evals.results.comparison import ALL
from evals.selection.selectors import GUARDED
from router.options.request import PrefillOptions
from tests.unit.cluster.plan.test_size import LONG, sizer
from tests.unit.evals.report.test_report import committed

DOCS = Path(__file__).parents[4] / "docs" / "plan.md"


def test_the_shares_are_those_of_the_results():
    """The latest measurement of each length that has one with the default."""
    found = {}
    for name in ("lengths-qwen-long", "lengths-qwen-default"):
        of_lengths = lengths.by_length(lengths.with_default(committed(name)))
        found |= {length: round(of.figure(ALL, (GUARDED, 0.0)).kept, 2) for length, of in of_lengths.items()}
    del found[lengths.ALL_LENGTHS]
    assert dict(sorted(found.items())) == KEPT_BY_DEFAULT


def test_the_docs_have_the_same_shares():
    *some, last = [f"{share:.2f} at {tokens:,}" for tokens, share in KEPT_BY_DEFAULT.items()]
    assert f"{', '.join(some)} and {last} tokens" in " ".join(DOCS.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("tokens", "share"),
    [(1, 1.0), (1999, 1.0), (2000, 0.38), (4095, 0.38), (4096, 0.37), (8192, 0.32), (16383, 0.32), (1_000_000, 0.30)],
)
def test_the_share_of_a_prompt(tokens, share):
    assert PrefillOptions().min_prompt_tokens == 2000
    assert kept_by_default(tokens) == share


def test_a_load_without_a_keep_rate():
    """Control: with one, nothing depends on the length."""
    default, fixed = replace(LONG, by_default=True), LONG
    assert [default.kept(n) for n in (1000, 4096, 32000)] == [1000, 1516, 9600]
    assert [fixed.kept(n) for n in (1000, 4096, 32000)] == [200, 820, 6400]
    own = sizer()
    plans = own.skim(default), own.skim(fixed)
    assert plans[0].first > plans[1].first
    pays = [own.pays_from(load, plan, own.plain(load)) for load, plan in zip((default, fixed), plans, strict=True)]
    assert pays[0] >= 2000
    assert pays[1] < pays[0]
