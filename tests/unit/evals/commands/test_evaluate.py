"""`skim eval`: from options to files. A user's mistake gives an error of one sentence."""

import json

import pytest

from tests.unit.conftest import MODELS
from tests.unit.evals.questions.texts import written

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


def test_questions_about_your_own_texts(skim, tmp_path):
    file, plot = tmp_path / "answers.json", tmp_path / "answers.png"
    asked = written(tmp_path / "questions.jsonl")
    options = ("--engine", "mock", "--samples", 1, "--selectors", "default; no document")
    ran = skim("eval", *PAIR, *options, "--questions", asked, "--json", file, "--plot", plot)
    assert ran.code == 0, ran.err
    result = json.loads(file.read_text())
    assert [[case[:2] for case in sample["scores"]] for sample in result["samples"]] == [
        [["dense", 1.0], ["default", 0.0], ["no document", 0.0]]
    ] * 2
    assert "tasks" not in result["settings"]
    assert plot.stat().st_size > 0
    assert "worst set " in " ".join(ran.out.split())


def test_a_published_benchmark_by_its_name(skim, tmp_path):
    file, plot = tmp_path / "published.json", tmp_path / "published.png"
    options = ("--engine", "mock", "--lengths", 4096, "--samples", 1, "--keep-rates", 1, "--tasks", "ifeval,mrcr")
    asked = (*options, "--selectors", "default;BM25")
    ran = skim("eval", *PAIR, *asked, "--json", file, "--plot", plot)
    assert ran.code == 0, ran.err
    result = json.loads(file.read_text())
    assert result["settings"]["tasks"] == ["ifeval/system", "ifeval/middle", "mrcr/4_needles"]
    assert [[case[:2] for case in sample["scores"]] for sample in result["samples"]] == [
        [["dense", 1.0], ["default", 0.0], ["BM25", 0.0]]
    ] * 3
    assert "It loses points in: " in " ".join(ran.out.split())
    assert plot.stat().st_size > 0
    for more, message in (("--timed", "nor is 'default'"), ("--turns", "nor is 'default'")):
        ran = skim("eval", *PAIR, *asked, more, 2)
        assert (ran.code, message in ran.error) == (2, True)
    ran = skim("eval", *PAIR, *options, "--selectors", "default;no document")
    assert (ran.code, "'no document' is for questions of a file" in ran.error) == (2, True)


def test_questions_take_the_place_of_tasks(skim, tmp_path):
    ran = skim("eval", *PAIR, *SMALL, "--questions", written(tmp_path / "questions.jsonl"))
    assert (ran.code, ran.error.strip()) == (
        2,
        "skim: --questions takes the place of the tasks: omit --tasks and --lengths",
    )


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
