"""The option speculative_prefill in body and header: the valid values of each field, and the error for the others."""

import json

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from kv_transfer.options import AUTO_COVERAGE, SelectionOptions
from router.options.errors import HttpError, InvalidOptionError
from router.options.request import DECODE, PREFILL, PrefillOptions, SpeculationOptions, read_decode
from router.options.settings import RouterConfig

DEFAULTS = PrefillOptions(keep_rate=0.25, look_ahead=4, min_prompt_tokens=77)


def refusal(header: str | None = None, body: object = None) -> InvalidOptionError:
    with pytest.raises(InvalidOptionError) as caught:
        PREFILL.resolve(DEFAULTS, header, body)
    return caught.value


def test_nothing_sent_is_the_deployments_defaults():
    assert PREFILL.resolve(DEFAULTS, None, None) == DEFAULTS
    assert PREFILL.resolve(DEFAULTS, "", {}) == DEFAULTS
    assert PREFILL.resolve(DEFAULTS, " ; ; ", None) == DEFAULTS


def test_the_body_wins_over_the_header_field_by_field():
    options = PREFILL.resolve(DEFAULTS, "keep=0.3; look-ahead=16; layers=last4", {"keep_rate": 0.5, "chunk_size": 64})
    assert (options.keep_rate, options.look_ahead, options.layers, options.chunk_size) == (0.5, 16, "last4", 64)
    assert options.min_prompt_tokens == DEFAULTS.min_prompt_tokens


@pytest.mark.parametrize(
    ("header", "body", "enabled"),
    [
        ("on", None, "auto"),
        (" TRUE ", None, "auto"),
        ("on; keep=0.4", None, "auto"),
        ("ALWAYS", None, "always"),
        ("always; keep=0.4", None, "always"),
        ("enabled=true", None, "auto"),
        ("enabled=always", None, "always"),
        ("keep=0.4; off", None, False),
        ("Auto;keep=0.4", None, "auto"),
        ("off", None, False),
        ("False", None, False),
        (None, True, "auto"),
        (None, "always", "always"),
        (None, {"enabled": True}, "auto"),
        ("always", True, "auto"),
        (None, False, False),
        ("off", True, "auto"),
        ("on", False, False),
        ("off", {"keep_rate": 0.5}, False),
        ("off", {"enabled": "always"}, "always"),
        ("enabled=false", None, False),
        ("auto", None, "auto"),
        ("enabled=auto", None, "auto"),
        ("off", "auto", "auto"),
        ("on", {"enabled": "auto"}, "auto"),
        (None, None, "auto"),
    ],
)
def test_switching_on_and_off(header, body, enabled):
    assert PREFILL.resolve(DEFAULTS, header, body).enabled == enabled


@pytest.mark.parametrize(
    ("header", "body", "wish"),
    [
        (None, None, "auto"),
        ("catch-up=off", None, "off"),
        ("catch_up=always; keep=0.4", None, "always"),
        (None, {"catch_up": "off"}, "off"),
        (None, {"catch_up": False}, "off"),
        ("catch-up=off", {"catch_up": "auto"}, "auto"),
    ],
)
def test_catching_up(header, body, wish):
    assert PREFILL.resolve(DEFAULTS, header, body).catch_up == wish


def test_a_deployment_file_may_say_off():
    assert RouterConfig.model_validate(yaml.safe_load("catch_up: off")).catch_up == "off"
    for word in ("on", "off"):
        options = PrefillOptions.model_validate(yaml.safe_load(f"{{read_again: {word}, reuse: {word}}}"))
        assert (options.read_again, options.reuse) == (word, word)


@pytest.mark.parametrize("value", [True, "on", 1, None, {}])
def test_other_values_of_catch_up_are_refused(value):
    error = refusal(body={"catch_up": value})
    assert str(error).startswith("speculative_prefill.catch_up should be 'auto', 'off' or 'always', not ")


def test_drafting_is_on_or_off():
    for header, body in (("auto", None), (None, "auto"), (None, {"enabled": "auto"})):
        with pytest.raises(InvalidOptionError):
            DECODE.resolve(SpeculationOptions(), header, body)


def test_true_in_the_request_overrides_a_deployment_that_is_off():
    off = PrefillOptions(enabled=False)
    assert PREFILL.resolve(off, None, True).enabled
    assert not PREFILL.resolve(off, None, {"keep_rate": 0.5}).enabled


@pytest.mark.parametrize(
    "header", ["keep=0.3", "KEEP = 0.3", "keep_rate=0.3;", "Keep-Rate=0.3", "keep=0.9; keep=0.3", "on; keep=0.3"]
)
def test_names_in_the_header(header):
    assert PREFILL.resolve(DEFAULTS, header, None).keep_rate == 0.3


def test_spans_in_the_header_are_json():
    assert PREFILL.resolve(DEFAULTS, "protected-spans=[[0, 4], [9, 12]]", None).protected_spans == [[0, 4], [9, 12]]


@pytest.mark.parametrize("names", [["a;b"], ['a";b', "c\\"], ["a", "b;"]])
def test_a_semicolon_in_a_string_of_the_header_parts_nothing(names):
    options = PREFILL.resolve(DEFAULTS, f"keep=0.3; protect_tools={json.dumps(names)};look-ahead=4", None)
    assert (options.keep_rate, options.protect_tools, options.look_ahead) == (0.3, names, 4)


@pytest.mark.parametrize("header", ['protect_tools=["a; keep=0.3', 'protect_tools="a;b"'])
def test_a_wrong_string_in_the_header_is_refused_by_name(header):
    assert refusal(header=header).param == "speculative_prefill.protect_tools"


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("enabled", 1, "must be auto, always, true or false"),
        ("enabled", "on", "must be auto, always, true or false"),
        ("keep_rate", 0, "must be auto or a number > 0 and <= 1"),
        ("keep_rate", 1.01, "must be auto or a number > 0 and <= 1"),
        ("keep_rate", "0.3", "must be auto or a number > 0 and <= 1"),
        ("keep_rate", True, "must be auto or a number > 0 and <= 1"),
        ("keep_rate", None, "must be auto or a number > 0 and <= 1"),
        ("keep_rate", float("nan"), "must be auto or a number > 0 and <= 1"),
        ("keep_rate", float("inf"), "must be auto or a number > 0 and <= 1"),
        ("coverage", 0, "should be greater than 0"),
        ("coverage", float("nan"), "should be less than or equal to 1"),
        ("look_ahead", -1, "should be greater than or equal to 0"),
        ("look_ahead", 65, "should be less than or equal to 64"),
        ("look_ahead", 8.0, "should be a valid integer"),
        ("look_ahead", 10**400, "should be less than or equal to 64"),
        ("chunk_size", 0, "should be greater than or equal to 1"),
        ("layers", "last2", "should be 'all', 'last_half', 'last4' or 'last1'"),
        ("aggregation", 3, "should be 'max' or 'head_max_layer_mean'"),
        ("granularity", "last", "should be 'text', 'chunk' or 'token'"),
        ("granularity", "word", "should be 'text', 'chunk' or 'token'"),
        ("protect_last", 0, "should be greater than or equal to 1"),
        ("min_prompt_tokens", 0, "should be greater than or equal to 1"),
        ("protected_spans", "0-4", "should be a valid list"),
        ("protected_spans", [[0, 1]] * 4097, "should have at most 4096 items after validation, not 4097"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_range(field, value, allowed):
    error = refusal(body={field: value})
    assert str(error).startswith(f"speculative_prefill.{field} {allowed}, not ")
    assert error.param == f"speculative_prefill.{field}"
    assert len(str(error)) < 250
    if isinstance(value, int | float) and not isinstance(value, bool):
        in_header = refusal(header=f"{field.replace('_', '-')}={json.dumps(value)}")
        assert str(in_header).startswith(f"speculative_prefill.{field} {allowed}, not ")


def test_auto_keeps_the_coverage_of_the_deployment():
    """`skim calibrate` writes a coverage; a request that only asks for auto uses it, and its own number replaces it."""
    calibrated = PrefillOptions(keep_rate="auto", coverage=0.62)
    auto = PREFILL.resolve(calibrated, "keep=auto", None)
    assert (auto.keep_rate, auto.wanted_coverage, auto.fixed_rate) == ("auto", 0.62, None)
    fixed = PREFILL.resolve(calibrated, None, {"keep_rate": 0.3})
    assert (fixed.fixed_rate, fixed.wanted_coverage) == (0.3, None)
    both = PREFILL.resolve(calibrated, None, {"keep_rate": 0.3, "coverage": 0.9})
    assert (both.fixed_rate, both.wanted_coverage) == (None, 0.9)
    assert PREFILL.resolve(PrefillOptions(), None, {"keep_rate": "auto"}).wanted_coverage == AUTO_COVERAGE


def test_the_bounds_of_auto_must_have_room():
    error = refusal(body={"keep_rate": "auto", "min_keep": 0.4, "max_keep": 0.3})
    assert str(error) == "speculative_prefill: max_keep must be at least min_keep, not 0.3 and 0.4"
    assert error.param == "speculative_prefill"
    # Without auto, max_keep bounds the reuse only.
    assert PREFILL.resolve(DEFAULTS, None, {"max_keep": 0.05}).max_keep == 0.05


def test_the_floor_holds_for_a_number_too():
    floored = PREFILL.resolve(PrefillOptions(), None, {"keep_rate": 0.1, "min_keep": 0.4})
    assert (floored.keep_rate, floored.fixed_rate) == (0.1, 0.4)
    # The request's own number replaces the deployment's floor, as its coverage.
    deployment = PrefillOptions(min_keep=0.3)
    assert PREFILL.resolve(deployment, None, {"keep_rate": 0.1}).fixed_rate == 0.1
    assert PREFILL.resolve(deployment, None, {"keep_rate": "auto"}).min_keep == 0.3
    assert PREFILL.resolve(deployment, None, {"keep_rate": 0.02}).fixed_rate == 0.02


def test_a_floor_alone_raises_the_default_of_max_keep():
    floored = PREFILL.resolve(PrefillOptions(), None, {"min_keep": 0.7})
    assert (floored.min_keep, floored.largest_share) == (0.7, 0.7)


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ({"keep_rate": "auto"}, False),
        ({"keep_rate": "auto", "coverage": 1.0}, False),
        ({"keep_rate": "auto", "coverage": 1.0, "max_keep": 1.0}, True),
        ({"keep_rate": "auto", "min_keep": 1.0, "max_keep": 1.0}, True),
        ({"keep_rate": 0.1, "min_keep": 1.0}, True),
    ],
)
def test_when_auto_keeps_all(options, whole):
    assert PrefillOptions(**options).keeps_all == whole


@pytest.mark.parametrize(
    ("spans", "where"), [([[1]], "0"), ([[0, 1], [1, 2, 3]], "1"), ([[0, -1]], "0.1"), ([[0, 1.5]], "0.1")]
)
def test_a_wrong_span_is_pointed_at(spans, where):
    assert refusal(body={"protected_spans": spans}).param == f"speculative_prefill.protected_spans.{where}"


@pytest.mark.parametrize("value", [0.001, 1, 1.0])
def test_the_ends_of_the_keep_rates_range(value):
    assert PREFILL.resolve(DEFAULTS, None, {"keep_rate": value}).keep_rate == value


@pytest.mark.parametrize("name", ["keeprate", "", "Enabled", "model_config", "selection", "x" * 10_000])
def test_an_unknown_option_is_refused_with_those_there_are(name):
    error = refusal(body={name: 1})
    assert str(error).startswith("unknown option speculative_prefill.")
    assert name[:40] in str(error)
    assert all(known in str(error) for known in PrefillOptions.model_fields)
    assert len(str(error)) - len(", ".join(PrefillOptions.model_fields)) < 120


@pytest.mark.parametrize("body", ["on", 1, 0, [], [True], 0.3, ""])
def test_a_body_of_another_type_is_refused(body):
    error = refusal(body=body)
    assert str(error) == f"speculative_prefill must be an object, auto, always, true or false, not {json.dumps(body)}"
    assert error.param == "speculative_prefill"


def test_a_header_without_equals_sign_is_shown_an_example():
    error = refusal(header="keep 0.3")
    assert str(error).startswith('header x-skim-prefill: "keep 0.3" is not name=value; write for example keep=')
    assert error.param == "x-skim-prefill"


# The brackets overflow the stack of the JSON parser; the digits exceed Python's limit for integers.
@given(st.one_of(st.text(), st.lists(st.tuples(st.text(), st.text())).map(lambda p: ";".join(map("=".join, p)))))
@example("keep=" + "[" * 60_000)
@example("keep=" + "1" * 5000)
def test_any_header_gives_options_or_one_error(header):
    try:
        PREFILL.resolve(DEFAULTS, header, None)
    except InvalidOptionError as error:
        json.dumps(HttpError.of(error).body(), ensure_ascii=False).encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=6,
)


@given(JSON | st.dictionaries(st.sampled_from(sorted(PrefillOptions.model_fields)), JSON))
@example({"\ud800": 1})
@example({"keep_rate": "\ud800"})
def test_any_body_gives_options_or_one_error(body):
    try:
        PREFILL.resolve(DEFAULTS, None, body)
    except InvalidOptionError as error:
        json.dumps(HttpError.of(error).body(), ensure_ascii=False).encode()


def test_only_the_selection_travels():
    options = PREFILL.resolve(DEFAULTS, None, {"keep_rate": 0.5, "protected_spans": [[0, 4]]})
    assert type(options.selection) is SelectionOptions
    assert options.selection == SelectionOptions(keep_rate=0.5, look_ahead=4)


def test_decode_options_follow_the_same_rules():
    defaults = SpeculationOptions(max_draft_tokens=6)
    assert not read_decode(defaults, {"x-skim-decode": "adaptive=false; max-draft-tokens=2"}, None).decode.adaptive
    assert read_decode(defaults, {"x-skim-decode": "max-draft-tokens=2"}, {"max_draft_tokens": 3}).max_draft_tokens == 3
    assert read_decode(defaults, {"x-skim-decode": "off"}, None).decode.method == "none"
    assert read_decode(defaults, {}, False).decode.method == "none"
    assert read_decode(defaults, {}, None).decode.method == "remote"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"max_draft_tokens": 7}, "speculative_decode.max_draft_tokens", "at most 6 in this deployment, not 7"),
        ({"max_draft_tokens": 0}, "speculative_decode.max_draft_tokens", "should be greater than or equal to 1, not 0"),
        ({"method": "ngram"}, "speculative_decode.method", "remote or none in this deployment, not ngram"),
        ({"method": "magic"}, "speculative_decode.method", "should be 'remote', 'ngram'"),
        ({"drafts": 4}, "speculative_decode.drafts", "unknown option"),
        (4, "speculative_decode", "must be an object, true or false"),
    ],
)
def test_a_decode_option_that_the_deployment_cannot_serve(body, param, words):
    with pytest.raises(InvalidOptionError) as error:
        read_decode(SpeculationOptions(max_draft_tokens=6), {}, body)
    assert error.value.param == param
    assert words in str(error.value)
