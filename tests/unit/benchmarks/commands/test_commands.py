"""`skim bench`: its help, and its errors for a user's mistakes."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.commands import COMMANDS
from benchmarks.commands.output import measure
from skim_common.errors import SkimError

MODULE = {name: module for module, names in COMMANDS.items() for name in names}


def test_help_names_every_benchmark_and_what_each_writes(skim):
    listed, readme = skim("bench", "--help").out, Path("benchmarks/README.md").read_text()
    assert all(name in listed and f"skim bench {name} " in readme for name in MODULE)
    for name in MODULE:
        shown = skim("bench", name, "--help").out
        assert "--json" in shown, name
        assert "--plot" in shown, name


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--lengths", "1k"), "--lengths takes numbers with commas between them, not '1k'"),
        (("--keep-rates", "0.1,1.5"), "--keep-rates takes numbers from 0.001 to 1, not '0.1,1.5'"),
        (("--short-lengths", "8"), "--short-lengths takes numbers from 100 to 200000, not '8'"),
    ],
)
def test_wrong_numbers_are_refused_before_anything_starts(skim, words, wrong):
    ran = skim("bench", "ttft", *words)
    assert ran.code == 2
    assert wrong in ran.error
    assert "Traceback" not in ran.error


@pytest.mark.parametrize(("rate", "shown"), [("much", "'much'"), ("1.5", "1.5"), ("0", "0"), ("0.1,0.2", "'0.1,0.2'")])
def test_a_wrong_share_is_refused_before_anything_starts(skim, rate, shown):
    ran = skim("bench", "turns", "--keep-rate", rate)
    assert ran.code == 2
    assert f"keep_rate must be auto or a number > 0 and <= 1, not {shown}" in ran.error


def test_a_plot_without_matplotlib_is_refused_before_the_measurement(skim, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = skim("bench", "scale", "--plot", tmp_path / "plot.png")
    assert ran.code == 2
    assert "plots need matplotlib" in ran.error


@pytest.mark.parametrize("name", ["decode", "goodput", "interference", "overhead", "scale"])
def test_a_model_is_a_hub_name_or_a_folder(skim, monkeypatch, tmp_path, name):
    asked = []

    def run(settings, report):
        asked.append((settings.target, settings.speculator))
        raise SkimError("nothing is measured")

    monkeypatch.setattr(MODULE[name].replace(".commands", f".{name}.run"), run)
    monkeypatch.chdir(tmp_path)
    skim("bench", name, "--target", "owner/big@v1", "--speculator", "small")
    assert asked == [("owner/big@v1", str(tmp_path / "small"))]


def test_a_result_says_by_which_command_it_came(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["/bin/skim", "bench", "overhead"])
    benchmark = SimpleNamespace(describe=lambda result: "", table=lambda result: (["a"], [["b"]]))
    measure(benchmark, lambda report: {}, tmp_path / "r.json", None)
    assert json.loads((tmp_path / "r.json").read_text()) == {"command": "skim bench overhead"}
