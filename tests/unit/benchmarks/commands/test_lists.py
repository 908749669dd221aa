"""Comma-separated option values."""

import pytest

from benchmarks.commands.lists import lengths, numbers, values
from skim_common.errors import SkimError


def test_different_values_in_their_order():
    assert values("16384,131072", int, "--lengths") == (16384, 131072)
    assert values("0.5, 0.1,,0.5", float, "--keep-rates") == (0.5, 0.1)
    assert values("", str, "--tasks") == ()


def test_numbers_in_range_ascend():
    assert numbers("0.5,0.1,0.5", "--keep-rates", 0.1, 1) == [0.1, 0.5]


@pytest.mark.parametrize("text", ["0.1;0.2", "1k"])
def test_what_is_no_list_of_numbers(text):
    with pytest.raises(SkimError, match=f"--rates takes numbers with commas between them, not '{text}'"):
        values(text, float, "--rates")


@pytest.mark.parametrize("text", ["", "0,0.5", "0.5,2", "nan"])
def test_numbers_out_of_range(text):
    with pytest.raises(SkimError, match=r"--rates takes numbers from 0\.1 to 1, not"):
        numbers(text, "--rates", 0.1, 1)


def test_prompt_lengths():
    assert lengths("8192, 2048") == (8192, 2048)
    for text in ("", "2048,", "255", "2k", "2048,2048"):
        with pytest.raises(SkimError, match="must be different whole numbers of at least 256"):
            lengths(text)
