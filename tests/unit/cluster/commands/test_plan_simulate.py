"""`skim plan simulate`: its text, its JSON, its page, a trace, a deployment file, and mistakes."""

import json
from xml.etree.ElementTree import fromstring

import pytest

from cluster.commands.plan_simulate import MOST_REQUESTS, _traffic

BLOCK = 512


@pytest.fixture
def trace(tmp_path):
    """Twenty conversations of two turns within ten minutes, each prompt of 20 blocks."""
    file = tmp_path / "trace.jsonl"
    rows = []
    for turn in range(2):
        for number in range(20):
            blocks = list(range(1000 * number, 1000 * number + 20 + turn))
            at = 1e3 * (15 * number + 300 * turn)
            rows.append({"timestamp": at, "input_length": len(blocks) * BLOCK, "output_length": 50, "hash_ids": blocks})
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_the_answer_as_text_json_and_page(skim, pair, trace, tmp_path):
    file, page_file = tmp_path / "day.json", tmp_path / "day.html"
    models = ("--target", pair[0], "--speculator", pair[1], "--gpu", "h200")
    ran = skim("plan", "simulate", *models, "--trace", trace, "--json", file, "--page", page_file)
    assert (ran.code, ran.err) == (0, "")
    result = json.loads(file.read_text())
    assert result["requests"] == 40
    assert result["simulated_share"] == 1
    assert result["systems"]["skim"]["within"] == 1
    for text in (result["verdict"], "GPU hours", "40 requests in 0.2 hours", "docs/plan.md"):
        assert text in ran.out
    page = page_file.read_text()
    root = fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    words = "".join(root.itertext()) + page
    for text in ("Skim, policy work: speculator", "share within the SLOs", "GPU hours", result["verdict"]):
        assert text in words
    assert not any(word in page for word in ("<script", "src=", "<link", "url(http"))


def test_a_file_names_the_models_and_how_the_pools_scale(skim, pair, trace, tmp_path):
    config, file = tmp_path / "skim.yaml", tmp_path / "day.json"
    config.write_text(
        f"speculator: {{model: {pair[1]}}}\ntarget: {{model: {pair[0]}}}\n"
        "selection: {keep_rate: 0.4}\nrouter: {min_prompt_tokens: 60000}\n"
    )
    ran = skim("plan", "simulate", config, "--trace", trace, "--json", file)
    assert (ran.code, ran.err) == (0, "")
    result = json.loads(file.read_text())
    assert result["load"]["keep_rate"] == 0.4
    assert result["systems"]["skim"]["speculative"] == 0


def test_copies_of_a_trace_multiply_its_requests(trace):
    assert _traffic(trace, 3, 1.0, 32000, 300, 0).at.size == 3 * 40


def test_a_day_of_many_requests_is_simulated_in_part():
    day = _traffic(None, 1, 200.0, 32000, 300, 0)
    assert day.at.size == pytest.approx(MOST_REQUESTS, rel=0.02)
    assert day.at.size / day.share == pytest.approx(200 * 86400 * 0.58, rel=0.05)
    assert _traffic(None, 1, 1.0, 32000, 300, 0).share == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--prompt", 400_000), "the longest prompt and its answer"),
        (("--trace", "missing.jsonl"), "cannot read the trace missing.jsonl"),
        (("--trace", "empty.jsonl"), "the trace empty.jsonl has no request"),
    ],
)
def test_mistakes_are_one_sentence(skim, pair, tmp_path, monkeypatch, words, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    ran = skim("plan", "simulate", "--target", pair[0], "--speculator", pair[1], *words)
    assert ran.code == 2
    assert error in ran.error
