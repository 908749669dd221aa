"""The tables of docs/options.md, from the declarations of the request options."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from router.options.request import DECODE, PREFILL
from skim_common.validation import problems

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
END = "<!-- end -->\n"
HEAD = "| option | default | values | meaning |\n|---|---|---|---|\n"
MODELS: dict[str, type[BaseModel]] = {option.name: option.model for option in (PREFILL, DECODE)}
MORE = {
    "catch_up": "#catch-up",
    "draft_context": "architecture/drafting.md",
    "granularity": "#what-is-kept-as-a-whole",
    "keep_by_role": "#how-much-of-a-message-is-kept",
    "keep_rate": "#keep_rate-auto",
    "layers": "models.md#kinds-of-models",
    "lossy": "#what-is-never-dropped",
    "read": "#windows",
    "read_again": "#windows",
    "reuse": "architecture/conversations.md",
    "scoring": "#retrieval-heads",
}
"""Where the documentation says more about an option."""


def table(model: type[BaseModel]) -> str:
    """Each option with its default, its values and its description, which a link to more may follow."""
    defaults = model().model_dump()
    rows = (
        (f"`{name}`", _default(defaults[name]), values(model, name), _meaning(name, field.description))
        for name, field in model.model_fields.items()
    )
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def values(model: type[BaseModel], name: str) -> str:
    """The values that an option may have, from its JSON schema, or in the words of the function that checks it."""
    field = model.model_json_schema()["properties"][name]
    if known := _in_words(field):
        return known
    try:
        model.model_validate({name: object()})
    except ValidationError as error:
        return problems(error)[0].message.removeprefix("Value error, must be ")
    raise AssertionError(f"{name} has any value")


def _in_words(schema: dict[str, Any]) -> str:
    """The values that a JSON schema allows; "" for all."""
    if "anyOf" in schema:
        return " or ".join(map(_in_words, schema["anyOf"]))
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if "items" in schema:
        bound = "" if "minItems" in schema else "at most "
        return f"a list of {bound}{schema['maxItems']}, each {_in_words(schema['items'])}"
    if "propertyNames" in schema:
        return f"an object with any of {', '.join(schema['propertyNames']['enum'])}"
    bounds = (("exclusiveMinimum", ">"), ("minimum", ">="), ("maximum", "<="))
    within = " and ".join(f"{sign} {schema[name]}" for name, sign in bounds if name in schema)
    words = {"boolean": "true or false", "integer": "an integer", "number": "a number", "string": "text"}
    kind = schema.get("type", "")
    return f"{words.get(kind, kind)} {within}".strip()


def _default(value: Any) -> str:
    if value in (None, []):
        return "none"
    if isinstance(value, str | bool | dict):
        return f"`{value if isinstance(value, str) else json.dumps(value)}`"
    return str(value)


def _meaning(name: str, description: str | None) -> str:
    more = f" ([more]({MORE[name]}))" if name in MORE else ""
    return f"{description}{more}"


def page(text: str, models: dict[str, type[BaseModel]] = MODELS) -> str:
    """The page with the table of each model between its two marks."""
    for name, model in models.items():
        begin = f"<!-- `python -m evals.report.options` makes {name} -->\n"
        before, mark, rest = text.partition(begin)
        assert mark, f"docs/options.md has no {begin}"
        text = f"{before}{mark}\n{table(model)}\n{END}{rest.partition(END)[2]}"
    return text


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
