"""The option speculative_prefill: body and header, what each field may be, and the sentence for what it may not."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kv_transfer.messages import SelectionOptions
from router.context import HttpError
from router.options import InvalidOptionError, RequestOptions, describe_range, resolve_options

DEFAULTS = RequestOptions(keep_rate=0.25, look_ahead=4, min_prompt_tokens=77)


def refusal(header: str | None = None, body: object = None) -> InvalidOptionError:
    with pytest.raises(InvalidOptionError) as caught:
        resolve_options(DEFAULTS, header, body)
    return caught.value


def test_nothing_sent_is_the_deployments_defaults():
    assert resolve_options(DEFAULTS, None, None) == DEFAULTS
    assert resolve_options(DEFAULTS, "", {}) == DEFAULTS
    assert resolve_options(DEFAULTS, " ; ; ", None) == DEFAULTS


def test_the_body_wins_over_the_header_field_by_field():
    options = resolve_options(DEFAULTS, "keep=0.3; look-ahead=16; layers=last4", {"keep_rate": 0.5, "chunk_size": 64})
    assert (options.keep_rate, options.look_ahead, options.layers, options.chunk_size) == (0.5, 16, "last4", 64)
    assert options.min_prompt_tokens == DEFAULTS.min_prompt_tokens


@pytest.mark.parametrize(
    ("header", "body", "enabled"),
    [
        ("on", None, True),
        (" TRUE ", None, True),
        ("off", None, False),
        ("False", None, False),
        (None, True, True),
        (None, False, False),
        ("off", True, True),
        ("on", False, False),
        ("off", {"keep_rate": 0.5}, False),
        ("off", {"enabled": True}, True),
        ("enabled=false", None, False),
    ],
)
def test_switching_on_and_off(header, body, enabled):
    assert resolve_options(DEFAULTS, header, body).enabled is enabled


def test_true_in_the_request_overrides_a_deployment_that_is_off():
    off = RequestOptions(enabled=False)
    assert resolve_options(off, None, True).enabled
    assert not resolve_options(off, None, {"keep_rate": 0.5}).enabled


@pytest.mark.parametrize("header", ["keep=0.3", "KEEP = 0.3", "keep_rate=0.3;", "Keep-Rate=0.3", "keep=0.9; keep=0.3"])
def test_names_in_the_header(header):
    assert resolve_options(DEFAULTS, header, None).keep_rate == 0.3


def test_spans_in_the_header_are_json():
    assert resolve_options(DEFAULTS, "protected-spans=[[0, 4], [9, 12]]", None).protected_spans == [[0, 4], [9, 12]]


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("enabled", 1, "true or false"),
        ("enabled", "on", "true or false"),
        ("keep_rate", 0, "a number > 0 and <= 1"),
        ("keep_rate", 1.01, "a number > 0 and <= 1"),
        ("keep_rate", "0.3", "a number > 0 and <= 1"),
        ("keep_rate", True, "a number > 0 and <= 1"),
        ("keep_rate", None, "a number > 0 and <= 1"),
        ("keep_rate", float("nan"), "a number > 0 and <= 1"),
        ("keep_rate", float("inf"), "a number > 0 and <= 1"),
        ("coverage", 0, "null or a number > 0 and <= 1"),
        ("coverage", float("nan"), "null or a number > 0 and <= 1"),
        ("look_ahead", -1, "an integer >= 0 and <= 64"),
        ("look_ahead", 65, "an integer >= 0 and <= 64"),
        ("look_ahead", 8.0, "an integer >= 0 and <= 64"),
        ("look_ahead", 10**400, "an integer >= 0 and <= 64"),
        ("chunk_size", 0, "an integer >= 1 and <= 4096"),
        ("pool_kernel", 4, "an integer >= 1 and <= 1023 and odd"),
        ("pool_kernel", 1025, "an integer >= 1 and <= 1023 and odd"),
        ("layers", "last2", "one of all, last4, last1"),
        ("aggregation", 3, "one of max, head_max_layer_mean"),
        ("granularity", "word", "one of chunk, token"),
        ("protect_last", 0, "an integer >= 1 and <= 4096"),
        ("min_prompt_tokens", 0, "an integer >= 1"),
        ("protected_spans", "0-4", "a list of at most 4096 pairs [start, end] of integers >= 0"),
        ("protected_spans", [[0, 1]] * 4097, "a list of at most 4096 pairs [start, end] of integers >= 0"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_range(field, value, allowed):
    error = refusal(body={field: value})
    assert str(error).startswith(f"speculative_prefill.{field} must be {allowed}, not ")
    assert error.param == f"speculative_prefill.{field}"
    assert len(str(error)) < 250
    if isinstance(value, int | float) and not isinstance(value, bool):
        in_header = refusal(header=f"{field.replace('_', '-')}={json.dumps(value)}")
        assert str(in_header).startswith(f"speculative_prefill.{field} must be {allowed}, not ")


@pytest.mark.parametrize(
    ("spans", "where"), [([[1]], "0"), ([[0, 1], [1, 2, 3]], "1"), ([[0, -1]], "0.1"), ([[0, 1.5]], "0.1")]
)
def test_a_wrong_span_is_pointed_at(spans, where):
    assert refusal(body={"protected_spans": spans}).param == f"speculative_prefill.protected_spans.{where}"


@pytest.mark.parametrize("value", [0.001, 1, 1.0])
def test_the_ends_of_the_keep_rates_range(value):
    assert resolve_options(DEFAULTS, None, {"keep_rate": value}).keep_rate == value


@pytest.mark.parametrize("name", ["keeprate", "", "Enabled", "model_config", "selection", "x" * 10_000])
def test_an_unknown_option_is_refused_with_those_there_are(name):
    error = refusal(body={name: 1})
    assert str(error).startswith("unknown option speculative_prefill.")
    assert name[:40] in str(error)
    assert all(known in str(error) for known in RequestOptions.model_fields)
    assert len(str(error)) < 400


@pytest.mark.parametrize("body", ["on", 1, 0, [], [True], 0.3, ""])
def test_a_body_of_another_type_is_refused(body):
    error = refusal(body=body)
    assert str(error) == f"speculative_prefill must be an object, true or false, not {json.dumps(body)}"
    assert error.param == "speculative_prefill"


def test_a_header_without_equals_sign_is_shown_an_example():
    error = refusal(header="keep 0.3")
    assert str(error).startswith('header x-speculative-prefill: "keep 0.3" is not name=value; write for example keep=')
    assert error.param == "x-speculative-prefill"


# The brackets overflow the JSON parser's stack, the digits are over Python's limit for integers.
@given(st.one_of(st.text(), st.lists(st.tuples(st.text(), st.text())).map(lambda p: ";".join(map("=".join, p)))))
@example("keep=" + "[" * 60_000)
@example("keep=" + "1" * 5000)
@example("\ud800=1")
def test_any_header_gives_options_or_one_error(header):
    try:
        resolve_options(DEFAULTS, header, None)
    except InvalidOptionError as error:
        json.dumps(HttpError.of(error).body(), ensure_ascii=False).encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=6,
)


@given(JSON | st.dictionaries(st.sampled_from(sorted(RequestOptions.model_fields)), JSON))
@example({"\ud800": 1})
@example({"keep_rate": "\ud800"})
def test_any_body_gives_options_or_one_error(body):
    try:
        resolve_options(DEFAULTS, None, body)
    except InvalidOptionError as error:
        json.dumps(HttpError.of(error).body(), ensure_ascii=False).encode()


def test_only_the_selection_travels():
    options = resolve_options(DEFAULTS, None, {"keep_rate": 0.5, "protected_spans": [[0, 4]]})
    assert type(options.selection) is SelectionOptions
    assert options.selection == SelectionOptions(keep_rate=0.5, look_ahead=4)


@pytest.mark.parametrize("name", RequestOptions.model_fields)
def test_every_option_has_a_range_in_words(name):
    words = describe_range(name)
    assert ("list of" in words) == (name == "protected_spans")
