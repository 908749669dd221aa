"""Schemas and grammars that would end an engine are refused; those of real clients pass."""

import json

import pytest

from kv_transfer.sampling_limits import MAX_GROUPS, MAX_LEVELS, check_sampling
from skim_common.errors import InvalidRequestError


def check(**structured_outputs):
    check_sampling({"structured_outputs": structured_outputs})


def nested(levels, inner):
    for _ in range(levels):
        inner = {"properties": {"x": inner}}
    return inner


def referring(links, levels):
    """Definitions of which each refers to the next."""
    definitions = {f"a{i}": nested(levels, {"$ref": f"#/$defs/a{i + 1}"}) for i in range(links)}
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{links}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("structured_outputs", "why"),
    [
        ({"json": json.dumps(nested(MAX_LEVELS, {}))}, "json has more than 200 levels"),
        ({"json": "[" * 5000}, "json has more than 200 levels"),
        ({"structural_tag": '{"format":' * 5000}, "structural_tag has more than 200 levels"),
        ({"json": referring(4000, 1)}, r"json has too many references \(\$ref\)"),
        ({"json": referring(150, 40)}, "json has too many references"),
        ({"json": json.dumps(referring(4000, 1)).replace("$", "\\u0024")}, "json has too many references"),
        ({"json": {"pattern": "(" * 100_000 + ")" * 100_000}}, "json has more than 1000 parentheses"),
        ({"regex": "(" * (MAX_GROUPS + 1)}, "regex has more than 1000 parentheses"),
        ({"grammar": 'root ::= "\ud800" ' + "(" * (MAX_GROUPS + 1)}, "grammar has more than 1000 parentheses"),
    ],
)
def test_what_would_end_an_engine_is_refused(structured_outputs, why):
    with pytest.raises(InvalidRequestError, match=why):
        check(**structured_outputs)


@pytest.mark.parametrize(
    "structured_outputs",
    [
        {},
        {"json": nested(45, {"type": "string"}), "regex": None, "json_object": None},
        {"json": json.dumps(referring(400, 3))},
        {"json": "{ no JSON"},
        {"json": '{"a": "\\ud800"}'},
        {"json": {"type": "object", "description": ":-( " * 900}},
        {"regex": "(a)" * 5000},
        {"grammar": "root ::= " + "{" * 300},
        {"choice": ["a", "b"]},
        {"json_object": True},
    ],
)
def test_others_pass(structured_outputs):
    check(**structured_outputs)
