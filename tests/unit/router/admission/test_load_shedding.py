"""What is left out under load, and in which order."""

from types import SimpleNamespace

import pytest

from router.admission.ticket import CATCH_UP, KEEP, relative_load
from router.dispatch.prepare import with_least_keep
from router.options.request import PREFILL, PrefillOptions


def test_the_order_is_catch_up_keep_refusal():
    assert 0 < CATCH_UP < KEEP < 1


@pytest.mark.parametrize(
    ("wait", "longest", "load"), [(0, 0, 0), (0, -5, 0), (5, 10, 0.5), (50, 10, 1), (5, -1, 1), (5, float("inf"), 0)]
)
def test_load(wait, longest, load):
    assert relative_load(wait, longest) == load


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"keep_rate": 0.2}, 0.05),
        ({"keep_rate": 0.2, "min_keep": 0.15}, 0.15),
        ({"keep_rate": "auto"}, 0.05),
        ({"coverage": 0.9}, 0.05),
        ({"keep_rate": 0.1}, 0.05),
        ({"keep_rate": 0.05}, None),
    ],
)
def test_the_least_keep_rate(given, kept):
    options = PREFILL.resolve(PrefillOptions(**given), None, None)
    less = with_least_keep(SimpleNamespace(options=options), SimpleNamespace(keep_fields=None))
    assert (None if less is None else (less.fixed_rate, less.coverage)) == (None if kept is None else (kept, None))
