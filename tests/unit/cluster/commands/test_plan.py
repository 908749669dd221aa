"""`skim plan size`: its text, its JSON, a deployment file, and mistakes."""

import json
import shutil

import pytest

from tests.unit.conftest import MODELS


def test_the_answer_as_text_and_json(skim, pair, tmp_path):
    file = tmp_path / "plan.json"
    ran = skim(
        "plan", "size", "--target", pair[0], "--speculator", pair[1], "--gpu", "h200", "--qps", 2, "--json", file
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    result = json.loads(file.read_text())
    pools = result["pools"]
    assert [(pool["tensor_parallel"], pool["replicas"]) for pool in pools.values()] == [(1, 1), (1, 1), (1, 4)]
    assert pools["speculator"]["weights_gib"] == pytest.approx(2.3, abs=0.05)
    assert 2000 < result["pays_from_tokens"] < 32000
    for text in ("tensor parallel x replicas", "Skim: 2 GPUs", "plain vLLM: 4 GPUs", "sooner with Skim from"):
        assert text in ran.out


def test_a_file_names_the_models_and_the_keep_rate(skim, pair, tmp_path):
    config = tmp_path / "skim.yaml"
    config.write_text(
        f"speculator: {{model: {pair[1]}}}\ntarget: {{model: {pair[0]}}}\nselection: {{keep_rate: 0.4}}\n"
    )
    models = config.read_text().replace("{keep_rate: 0.4}", "{keep_rate: auto}")
    (default := tmp_path / "default.yaml").write_text(models)
    for words, rate in (((config,), 0.4), ((config, "--keep-rate", 0.1), 0.1), ((default,), 0.3)):
        file = tmp_path / "plan.json"
        assert skim("plan", "size", *words, "--json", file).code == 0
        assert json.loads(file.read_text())["keep_rate"] == rate


@pytest.mark.parametrize("selection", ["{read: whole}", "{scoring: attention}", "{granularity: chunk}"])
def test_a_file_without_windows_reads_prompts_as_a_whole(skim, pair, tmp_path, selection):
    config, file = tmp_path / "skim.yaml", tmp_path / "plan.json"
    models, found = f"speculator: {{model: {pair[1]}}}\ntarget: {{model: {pair[0]}}}\n", []
    for text in (models, f"{models}selection: {selection}\n"):
        config.write_text(text)
        assert skim("plan", "size", config, "--prompt", 64000, "--json", file).code == 0
        found.append(json.loads(file.read_text()))
    windows, whole = (result["pools"]["speculator"]["prefill_s"] for result in found)
    assert windows < whole / 1.4


def test_a_file_can_do_without_the_second_read(skim, pair, tmp_path):
    config, file = tmp_path / "skim.yaml", tmp_path / "plan.json"
    models, found = f"speculator: {{model: {pair[1]}}}\ntarget: {{model: {pair[0]}}}\n", {}
    for again in ("on", "off"):
        config.write_text(f"{models}selection: {{read_again: {again}}}\n")
        assert skim("plan", "size", config, "--json", file).code == 0
        found[again] = json.loads(file.read_text())
    once, twice = (found[again]["pools"]["speculator"]["prefill_s"] for again in ("off", "on"))
    assert 1.25 * once < twice < 1.4 * once


def test_in_windows_a_speculator_reads_more_than_its_positions(skim, pair, tmp_path):
    small = tmp_path / "small"
    shutil.copytree(pair[1], small)
    text = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(text | {"max_position_embeddings": 4096}))
    config = tmp_path / "skim.yaml"
    for read, code in (("windows", 0), ("whole", 2)):
        scoring = "heads" if read == "windows" else "auto"
        config.write_text(
            f"speculator: {{model: {small}}}\ntarget: {{model: {pair[0]}}}\n"
            f"selection: {{read: {read}, scoring: {scoring}}}\n"
        )
        assert skim("plan", "size", config, "--prompt", 32000).code == code


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--target", MODELS / "target"), "give a deployment file, or both --target and --speculator"),
        (("--gpu", "abacus"), "--gpu abacus: the plan knows a100"),
        (("--target", MODELS / "target", "--speculator", MODELS / "speculator", "--prompt", 40000), "32768 positions"),
    ],
)
def test_mistakes_are_one_sentence(skim, words, error):
    ran = skim("plan", "size", *words)
    assert ran.code == 2
    assert error in ran.error
