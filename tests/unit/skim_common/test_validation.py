"""What a person reads of settings that are wrong."""

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from skim_common.validation import sentence


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    port: int = Field(ge=1)
    name: str = "x"

    @model_validator(mode="after")
    def _rule(self) -> "Section":
        if self.name == "bad":
            raise ValueError("a bad name needs another port")
        return self


class Whole(BaseModel):
    section: Section


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"port": 0}, "section.port: should be greater than or equal to 1, not 0"),
        ({"port": "1"}, "section.port: should be a valid integer, not '1'"),
        ({}, "section.port: is missing"),
        ({"port": 1, "prot": 2}, "section.prot: is not a setting"),
        ({"port": 1, "name": "bad"}, "section: a bad name needs another port"),
        ({"port": 0, "name": 5}, "section.port: should be greater than or equal to 1, not 0; section.name: should be"),
    ],
)
def test_each_problem_has_its_name(given, words):
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({"section": given})
    assert sentence(caught.value).startswith(words)


def test_a_problem_of_the_whole_has_no_name():
    with pytest.raises(ValidationError) as caught:
        Section.model_validate({"port": 1, "name": "bad"})
    assert sentence(caught.value) == "a bad name needs another port"
