"""What is left out under load, and in which order."""

import pytest

from kv_transfer.options import DecodeOptions
from router.admission.load_shedding import (
    CATCH_UP,
    DRAFT_AHEAD,
    DRAFTS,
    KEEP,
    least_keep,
    lighter_decoding,
    relative_load,
)
from router.options.request import PREFILL, PrefillOptions


def test_the_order_is_catch_up_draft_ahead_drafts_keep_refusal():
    assert 0 < CATCH_UP < DRAFT_AHEAD < DRAFTS < KEEP < 1


@pytest.mark.parametrize(
    ("load", "method", "ahead", "shed"),
    [
        (0.0, "remote", "chain", ""),
        (0.2, "remote", "chain", ""),
        (0.3, "remote", "off", "draft-ahead"),
        (0.6, "none", "chain", "drafts"),
        (1.0, "none", "chain", "drafts"),
    ],
)
def test_drafts_get_fewer(load, method, ahead, shed):
    decode, kind = lighter_decoding(DecodeOptions(), load)
    assert (decode.method, decode.draft_ahead, kind) == (method, ahead, shed)


def test_what_has_no_drafts_of_ours_is_left_alone():
    for decode in (DecodeOptions(method="none"), DecodeOptions(method="ngram")):
        assert lighter_decoding(decode, 1.0) == (decode, "")
    assert lighter_decoding(DecodeOptions(draft_ahead="off"), 0.3)[1] == ""


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
    less = least_keep(PREFILL.resolve(PrefillOptions(**given), None, None))
    assert (None if less is None else (less.fixed_rate, less.coverage)) == (None if kept is None else (kept, None))
