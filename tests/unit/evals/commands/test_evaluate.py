"""`skim eval`: from options to files. A user's mistake gives an error of one sentence."""

import json

import pytest

from tests.unit.conftest import MODELS

PAIR = ("--target", MODELS / "target", "--speculator", MODELS / "speculator")
SMALL = ("--engine", "mock", "--lengths", "1024", "--samples", 1, "--tasks", "multi_key, counting", "--style", "plain")


def test_from_options_to_files(skim, tmp_path):
    file, plot = tmp_path / "eval.json", tmp_path / "eval.png"
    ran = skim("eval", *PAIR, *SMALL, "--keep-rates", "0.1,0.2,1", "--seed", 3, "--json", file, "--plot", plot)
    assert ran.code == 0, ran.err
    result = json.loads(file.read_text())
    settings = result["settings"]
    assert (settings["keep_rates"], settings["tasks"], settings["seed"]) == (
        [0.1, 0.2, 1.0],
        ["multi_key", "counting"],
        3,
    )
    assert (settings["target"], settings["speculator"]) == ("target", "speculator")
    assert result["command"].startswith("skim eval --target ")
    assert plot.stat().st_size > 0
    assert "Metric: the answer states the value." in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--keep-rates", "0.1;0.2"), "--keep-rates takes numbers with commas between them, not '0.1;0.2'"),
        (("--keep-rates", "0"), "keep rates must be in (0, 1], not 0"),
        (("--style", "sonnet"), "--style is instruct or plain, not sonnet"),
        (("--tasks", "juggling"), "unknown task 'juggling'"),
        (("--target-options", "float32"), "--target-options takes a JSON object"),
        (
            ("--endpoint", "http://127.0.0.1:1"),
            "give the pair by --target and --speculator, or --endpoint",
        ),
    ],
)
def test_a_mistake_is_one_sentence(skim, words, message):
    ran = skim("eval", *PAIR, *SMALL, *words)
    assert ran.code == 2
    assert ran.error.startswith("skim: ")
    assert message in ran.error
    assert "Traceback" not in ran.err
