"""Options that a command takes as one object."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cluster.commands.flags import grouped


@dataclass(frozen=True)
class Size:
    """Two options; the first is required."""

    width: Annotated[int, typer.Option(min=1, help="In cells.")]
    height: Annotated[int | None, typer.Option("--high", help="In cells.")] = None


@pytest.fixture
def run():
    """Runs the command with words; gives the exit code, the output and what the command got."""
    got, app = [], typer.Typer()

    @app.command()
    @grouped
    def draw(name: str, *, size: Size, colour: str = "red") -> None:
        """Draw it."""
        got.append((name, size, colour))

    def run(*words):
        ran = CliRunner().invoke(app, words)
        return ran.exit_code, ran.output, got

    return run


def test_the_fields_are_options_and_arrive_as_one_object(run):
    code, _, got = run("box", "--width", "3", "--high", "4", "--colour", "blue")
    assert (code, got) == (0, [("box", Size(3, 4), "blue")])


def test_defaults_limits_and_required_fields_are_those_of_the_group(run):
    assert run("box", "--width", "3")[2] == [("box", Size(3), "red")]
    assert run("box", "--width", "0")[0] == run("box")[0] == 2


def test_help_shows_the_options_in_the_place_of_the_group(run):
    _, text, _ = run("--help")
    assert "Draw it." in text
    places = [text.index(option) for option in ("--width", "--high", "--colour")]
    assert places == sorted(places)
    assert "--size" not in text
