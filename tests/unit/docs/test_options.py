"""docs/options.md has the options of a request as the code declares them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, Field

from evals.report import options as generator
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState
from router.options.request import DECODE, PREFILL, PrefillOptions, SpeculationOptions
from router.prompt.rendered import RenderedPrompt

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "options.md").read_text()


def test_the_page_has_the_tables_that_the_code_gives() -> None:
    """If not: `python -m evals.report.options`."""
    assert generator.page(PAGE) == PAGE


@pytest.mark.parametrize("option", [PREFILL, DECODE], ids=lambda option: option.name)
def test_a_change_of_a_declaration_changes_the_page(option: Any) -> None:
    class Changed(option.model):
        enabled: bool = Field(False, description="changed")

    assert generator.page(PAGE, {option.name: Changed}) != PAGE


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(AssertionError, match="has no"):
        generator.page("# Options")


def test_every_option_says_what_it_means_and_each_link_belongs_to_one() -> None:
    fields = {name: field for option in (PREFILL, DECODE) for name, field in option.model.model_fields.items()}
    assert [name for name, field in fields.items() if not field.description] == []
    assert generator.MORE.keys() <= fields.keys()


def table(heading: str) -> dict[str, str]:
    """The second column of the table under `heading` by its first."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))


def shown(default: object) -> str:
    if default in (None, []):
        return "none"
    return (
        str(default) if isinstance(default, int | float) and not isinstance(default, bool) else f"`{default}`".lower()
    )


@pytest.mark.parametrize(
    ("name", "options"), [(PREFILL.name, PrefillOptions), (DECODE.name, SpeculationOptions)], ids=["prefill", "decode"]
)
def test_every_option_is_listed_with_its_default(name: str, options: type[BaseModel]) -> None:
    defaults = options().model_dump()
    assert table(name) == {field: shown(default) for field, default in defaults.items()}


def test_every_header_of_a_response_is_listed() -> None:
    context = CallState(Request(PrefillOptions(), SpeculationOptions().decode), answering=True)
    outcome = context.begin(Prompt(RenderedPrompt(np.ones(1, np.int32)), {}, 1))
    outcome.mode, outcome.caught_up = "dense", 1
    names = {name for name, _ in context.headers()}
    section = PAGE.split("\n## What a response reports\n")[1].lower()
    assert set(re.findall(r"`(x-skim-[\w-]+|server-timing)`", section)) == names
