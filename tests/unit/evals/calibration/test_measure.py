"""`skim calibrate`: which way of scoring and which coverage it chooses, and the file that it writes."""

import json

import numpy as np
import pytest

from cluster.config.load import load_config
from evals.calibration.curve import COVERAGES, Observation, wanted_coverage
from evals.calibration.measure import CalibrationJournal, CalibrationSettings
from evals.calibration.prompts import CalibrationPrompt, from_file
from evals.calibration.recall import beside_lexical, best_way, recalls
from evals.commands.calibrate import write_config
from evals.selection.chunk_recall import LEXICAL, WAYS
from kv_transfer.layout import NO_LAYOUT
from kv_transfer.options import SelectionOptions
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

FIRST, SECOND = list(WAYS)[:2]


def observation(agreements):
    return Observation("p", tuple(COVERAGES), tuple(agreements))


def test_the_coverage_is_the_smallest_that_all_larger_ones_reach():
    rising = [observation([0.2, 0.4, 0.6, 0.8, 0.95, 1.0, 1.0])]
    assert wanted_coverage(rising, 0.95) == 0.7
    assert wanted_coverage(rising, 0.1) == 0.3
    # A lucky early value does not count.
    assert wanted_coverage([observation([1.0, 0.4, 0.6, 0.8, 0.95, 1.0, 1.0])], 0.95) == 0.7
    assert wanted_coverage([observation([0.2] * 7)], 0.95) is None


def test_the_mean_over_the_prompts_decides():
    two = [observation([0.0] * 3 + [1.0] * 4), observation([1.0] * 7)]
    assert wanted_coverage(two, 0.5) == 0.3
    assert wanted_coverage(two, 0.6) == 0.6


def recall_of(ours, lexical):
    return {
        FIRST: {"0.05": ours, "0.1": ours, "0.2": ours},
        LEXICAL: {"0.05": lexical, "0.1": lexical, "0.2": lexical},
    }


@pytest.mark.parametrize(
    ("ours", "lexical", "verdict"),
    [
        ([1.0] * 20, [0.0] * 18 + [1.0] * 2, "beats lexical selection"),
        ([0.0] * 18 + [1.0] * 2, [1.0] * 20, "is worse than lexical selection"),
        ([1.0, 0.0] * 10, [0.0, 1.0] * 10, "is not clearly better than lexical selection"),
    ],
)
def test_the_verdict_follows_the_interval(ours, lexical, verdict):
    sentence = beside_lexical(recall_of(ours, lexical), FIRST)
    assert sentence.startswith(f"This speculator {verdict}: ")
    assert f"{100 * np.mean(ours):.0f} % of the evidence" in sentence
    assert "20 prompts" in sentence


def test_the_best_way_has_the_highest_recall():
    rates = ("0.05", "0.1", "0.2")
    recall = {FIRST: dict.fromkeys(rates, (0.5,)), SECOND: {**dict.fromkeys(rates, (0.5,)), "0.1": [0.6]}}
    assert best_way(recall, [FIRST, SECOND]) == SECOND
    # Of equal ones, the first.
    assert best_way({**recall, SECOND: recall[FIRST]}, [FIRST, SECOND]) == FIRST


def test_recall_is_the_kept_share_of_the_evidence():
    ids = np.arange(640, dtype=np.int32)
    prompt = CalibrationPrompt("p", RenderedPrompt(ids), NO_LAYOUT, [(32, 64), (320, 352)])
    importance = np.zeros(640, np.float32)
    importance[32:64] = 1.0
    options = SelectionOptions(protect_last=1)
    assert recalls(prompt, importance, options) == {"0.05": 0.5, "0.1": 0.5, "0.2": 0.5}
    importance[320:352] = 0.5
    assert recalls(prompt, importance, options)["0.1"] == 1.0


def lines(path, *objects):
    path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return path


def test_a_file_of_prompts(tokenizer, tmp_path):
    text = "The old kettle stood near the window. " * 60
    path = lines(
        tmp_path / "prompts.jsonl",
        {"messages": [{"role": "user", "content": f"{text}\nWhere did the kettle stand?"}]},
        {"prompt": f"{text}\nWhere did the kettle stand?"},
        {"body": {"messages": [{"role": "user", "content": f"{text}\nHow many times is the kettle named?"}]}},
        {"prompt": "short"},
    )
    found, skipped = from_file(path, tokenizer, PrefillOptions(min_prompt_tokens=64), 10)
    assert [prompt.name for prompt in found] == ["line 1", "line 2"]
    assert skipped.reasons == {"guard-whole-text": 1, "short-prompt": 1}
    assert len(from_file(path, tokenizer, PrefillOptions(min_prompt_tokens=64), 1)[0]) == 1


@pytest.mark.parametrize("line", ["not json", "[1]", '{"messages": []}', '{"prompt": 7}', '{"text": "x"}'])
def test_a_wrong_line_is_named(tokenizer, tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(SkimError, match="line 2: must be"):
        from_file(path, tokenizer, PrefillOptions(), 10)


def test_a_file_without_a_long_prompt(tokenizer, tmp_path):
    path = lines(tmp_path / "prompts.jsonl", {"prompt": "short"})
    with pytest.raises(SkimError, match=r"no prompt that would be compressed \(1 short-prompt\)"):
        from_file(path, tokenizer, PrefillOptions(), 10)


async def test_a_result_is_measured_once(tmp_path):
    path, settings = tmp_path / "journal.jsonl", CalibrationSettings("big", "small")
    asked = []

    async def measure():
        asked.append(1)
        return {"x": 1}

    assert await CalibrationJournal(path, settings).once(["a"], measure) == {"x": 1}
    with path.open("a") as file:
        file.write('{"key": ["b"], "res')  # the run was stopped here
    again = CalibrationJournal(path, settings)
    assert await again.once(["a"], measure) == {"x": 1}
    assert len(asked) == 1
    await again.once(["b"], measure)
    assert len(asked) == 2
    assert await CalibrationJournal(path, settings).once(["b"], measure) == {"x": 1}
    assert len(asked) == 2
    with pytest.raises(SkimError, match="results of another run"):
        CalibrationJournal(path, CalibrationSettings("big", "other"))


RESULT = {
    "prompts": 3,
    "selection": {"keep_rate": "auto", "coverage": 0.6, "layers": "last4"},
}


def test_the_file_is_one_that_serve_reads(tmp_path):
    before = tmp_path / "before.yaml"
    before.write_text(
        "target: {model: /models/big, replicas: 2}\nspeculator: {model: /models/small}\n"
        "selection: {keep_rate: 0.3, max_keep: 0.4}\nrouter: {port: 9000}\n"
    )
    after = tmp_path / "after.yaml"
    write_config(before, "/models/big", "/models/small", RESULT, after)
    config = load_config(after)
    assert (config.selection.keep_rate, config.selection.coverage, config.selection.max_keep) == ("auto", 0.6, 0.4)
    assert config.selection.layers == "last4"
    assert (config.router.port, config.target.replicas) == (9000, 2)


def test_from_options_to_files(skim, tmp_path):
    """The whole command with mock engines; a second run takes all results from the journal."""
    output, file, plot = tmp_path / "skim.yaml", tmp_path / "calibration.json", tmp_path / "calibration.png"
    words = ("--target", MODELS / "target", "--speculator", MODELS / "speculator", "--engine", "mock", "--count", 1)
    words += ("--length", 3072, "--journal", tmp_path / "journal.jsonl", "--output", output)
    ran = skim("calibrate", *words, "--json", file, "--plot", plot)
    assert ran.code == 0, ran.err
    result = json.loads(file.read_text())
    assert list(result["recall"]) == list(WAYS)
    assert [point["coverage"] for point in result["curve"]] == list(COVERAGES)
    assert result["lexical"].startswith("This speculator ")
    assert result["lexical"] in " ".join(ran.out.split())
    assert plot.stat().st_size > 0
    assert load_config(output).selection.keep_rate == "auto"
    journal = (tmp_path / "journal.jsonl").read_text()
    assert skim("calibrate", *words).code == 0
    assert (tmp_path / "journal.jsonl").read_text() == journal


def test_a_mistake_is_one_sentence(skim, tmp_path):
    ran = skim("calibrate", "--output", tmp_path / "x.yaml", "--target", MODELS / "target")
    assert ran.code == 2
    assert ran.error.startswith("skim: ")
