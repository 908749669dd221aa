"""`skim select`, end to end in this process on the demo models."""

import json
from itertools import pairwise

import pytest
from transformers import AutoTokenizer

from cluster.commands.select import highlight_kept
from demo_models.documents import make_document
from router.options.request import PrefillOptions
from skim.prompts import render
from skim_common.models.info import load_tokenizer
from tests.unit.conftest import MODELS

SPECULATOR = MODELS / "speculator"


@pytest.fixture(scope="module")
def document():
    return make_document(600, seed=2)


def select(skim, tmp_path, *words, engine):
    """The JSON that `skim select` writes, and its output."""
    file = tmp_path / "selection.json"
    ran = skim("select", "--speculator", SPECULATOR, *words, "--engine", engine, "--json", file)
    assert ran.code == 0, ran.err
    return json.loads(file.read_text()), ran.out


def test_from_a_prompt_to_a_selection(skim, tmp_path, document):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(document.prompt)
    options = '{"selector": "speculator", "look_ahead": 4, "chunk_size": 16}'
    words = ("--prompt-file", prompt, "--chat", "--keep-rate", 0.3, "--options", options)
    selection, shown = select(skim, tmp_path, *words, engine="mock")

    tokenizer = AutoTokenizer.from_pretrained(SPECULATOR)
    ids = tokenizer.apply_chat_template(document.messages, add_generation_prompt=True, return_dict=False)
    assert selection["context_length"] == len(ids) == document.prompt_tokens == len(selection["importance"])
    positions = selection["kept_positions"]
    assert selection["token_ids"] == [ids[i] for i in positions]
    assert positions == sorted(set(positions))
    assert set(range(len(ids) - 32, len(ids))) <= set(positions)
    assert 0.3 < len(positions) / len(ids) < 0.5
    assert 1 <= len(selection["look_ahead_tokens"]) <= 4
    assert 0 < selection["coverage"] < 1
    assert selection["options"]["chunk_size"] == 16
    assert f"kept {len(positions)} of {len(ids)} tokens" in " ".join(shown.split())
    assert document.question.split()[-1] in shown


@pytest.mark.parametrize("words", [[], ["--chat"]])
@pytest.mark.parametrize("granularity", ["text", "chunk"])
def test_lines_and_sentences_are_kept_as_a_whole(skim, tmp_path, document, words, granularity):
    """Unless chunks are asked for, which tear them."""
    (file := tmp_path / "prompt.txt").write_text(document.prompt)
    options = json.dumps({"granularity": granularity})
    words = ("--prompt-file", file, *words, "--options", options, "--keep-rate", 0.2)
    selection, _ = select(skim, tmp_path, *words, engine="mock")
    kept, length = set(selection["kept_positions"]), selection["context_length"]
    prompt = render(document.messages if "--chat" in words else document.prompt, load_tokenizer(str(SPECULATOR)))
    edges = [*prompt.layout(PrefillOptions()).units.tolist(), length]
    torn = [unit for unit in pairwise(edges) if 0 < len(kept & set(range(*unit))) < unit[1] - unit[0]]
    assert bool(torn) is (granularity == "chunk")
    assert len(kept) < 0.5 * length


def test_token_ids_instead_of_text(skim, tmp_path):
    ids = list(range(10, 110))
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(ids))
    selection, _ = select(skim, tmp_path, "--prompt-ids", file, "--keep-rate", 1, engine="mock")
    assert selection["token_ids"] == ids
    assert selection["kept_positions"] == list(range(100))
    assert selection["coverage"] == pytest.approx(1)


def test_without_json_nothing_is_written(skim, tmp_path):
    file = tmp_path / "ids.json"
    file.write_text("[10, 11, 12]")
    ran = skim("select", "--speculator", SPECULATOR, "--prompt-ids", file, "--engine", "mock")
    assert (ran.code, ran.err) == (0, "")
    assert list(tmp_path.iterdir()) == [file]


def test_kept_tokens_are_highlighted():
    text = highlight_kept(["a", "b", "c", "d"], [1, 2], first=1)
    assert text.plain == "bcd"
    assert ["on" in str(span.style) for span in text.spans] == [True, True, False]


def test_engines_take_options(skim, tmp_path):
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(list(range(10, 110))))
    words = ("select", "--speculator", SPECULATOR, "--prompt-ids", file, "--engine", "mock")
    ran = skim(*words, "--speculator-options", '{"max_model_len": 50}')
    assert (ran.code, "the speculator reads at most 50" in ran.error) == (2, True), ran.err
    assert skim(*words, "--speculator-options", '{"max_model_len": 200}').code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("float32", "--speculator-options takes a JSON object, for example"),
        ("[1]", "--speculator-options takes a JSON object, for example"),
        ('{"dtype": "float32"}', "unknown mock speculator engine option 'dtype': the options are latency_ms, "),
    ],
)
def test_wrong_engine_options_are_one_line(skim, tmp_path, options, message):
    file = tmp_path / "ids.json"
    file.write_text("[10, 11]")
    words = ("select", "--speculator", SPECULATOR, "--prompt-ids", file, "--engine", "mock")
    ran = skim(*words, "--speculator-options", options)
    assert (ran.code, ran.err.count("skim: ")) == (2, 1)
    assert message in ran.error
