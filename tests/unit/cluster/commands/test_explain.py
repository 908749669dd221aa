"""`skim explain`, end to end in this process on the demo models."""

import json

import pytest

from demo_models.documents import make_document
from tests.unit.cluster.explain.test_page import data_of
from tests.unit.conftest import MODELS

SPECULATOR, TARGET = MODELS / "speculator", MODELS / "target"


def test_a_page_of_a_chat(skim, tmp_path):
    document = make_document(1200, seed=5)
    prompt, page = tmp_path / "chat.json", tmp_path / "page.html"
    prompt.write_text(json.dumps(document.messages))
    options = '{"coverage": 0.5, "look_ahead": 2}'
    words = ("--prompt", prompt, "--speculator", SPECULATOR, "--target", TARGET, "--engine", "mock", "-o", page)
    ran = skim("explain", *words, "--options", options)
    assert ran.code == 0, ran.err
    data = data_of(page.read_text(encoding="ascii"))
    assert document.document in "".join(piece[4] for piece in data["pieces"])
    assert [group["name"] for group in data["groups"]] == ["protected", "coverage", "dropped"]
    assert ["coverage", "0.5"] in data["details"]
    assert f"of {data['tokens']} tokens kept" in " ".join(ran.err.split())


REQUEST = ("--request", "r1", "--prompt", __file__, "--target", "t")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --prompt and --speculator, or --request"),
        (("--prompt", "chat.json", "--speculator", "s"), "cannot read chat.json"),
        (("--request", "r1", "--target", "t"), "give --prompt and --speculator, or --request"),
        ((*REQUEST, "--url", "http://127.0.0.1:9"), "did not answer"),
        ((*REQUEST, "--url", "nonsense"), "did not answer"),
    ],
)
def test_mistakes_are_one_line(skim, tmp_path, words, message):
    ran = skim("explain", "-o", tmp_path / "page.html", *words)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert message in ran.err
    assert not (tmp_path / "page.html").exists()


def test_a_wrong_option_names_itself(skim, tmp_path):
    prompt = tmp_path / "a.txt"
    prompt.write_text("words")
    words = ("--prompt", prompt, "--speculator", SPECULATOR, "--engine", "mock", "-o", tmp_path / "page.html")
    ran = skim("explain", *words, "--options", '{"keeprate": 1}')
    assert ran.code == 2
    assert "unknown option speculative_prefill.keeprate" in " ".join(ran.err.split())


def test_a_page_that_cannot_be_written(skim, tmp_path):
    prompt = tmp_path / "a.txt"
    prompt.write_text("words " * 50)
    words = ("--prompt", prompt, "--speculator", SPECULATOR, "--engine", "mock", "-o", tmp_path / "no" / "page.html")
    ran = skim("explain", *words)
    assert ran.code == 2
    assert "cannot write" in ran.err
