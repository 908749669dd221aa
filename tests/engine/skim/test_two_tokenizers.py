"""`Pair` on vLLM with two tokenizers: scores against the oracle, right answers from a part of the prompt, drafts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demo_models.documents import make_document
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim.pair import Pair
from tests.reference import scoring_oracle
from tests.reference.models import build_model, load_model
from tests.reference.tokenizers_by_kind import model_without_weights, renumbered_model, tokenizer_of

pytestmark = pytest.mark.nightly

MODELS = Path(__file__).parents[3] / "demo_models"
OPTIONS = {"enforce_eager": True, "max_model_len": 4096}
DOCUMENT = make_document(2048, 3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The demo pair, but the target's tokens have other ids. Fixed drafts: every step has some."""
    target = renumbered_model(MODELS / "target", tmp_path_factory.mktemp("models") / "target")
    with Pair(
        target,
        MODELS / "speculator",
        target_options={**OPTIONS, "draft_channel": {"deadline_s": 20.0}},
        speculator_options=OPTIONS,
        decode=DecodeOptions(adaptive=False),
    ) as pair:
        yield pair


def test_other_ids_change_nothing_of_a_selection(pair: Pair) -> None:
    """Windows share steps in any order, so their scores differ in the last bits, which rank lines without evidence."""
    with Pair(speculator=MODELS / "speculator", speculator_options=OPTIONS) as own:
        for read in ("whole", "windows"):
            selection, expected = (of.select(DOCUMENT.messages, keep_rate=0.1, read=read) for of in (pair, own))
            assert not np.array_equal(selection.kept.token_ids, expected.kept.token_ids)
            assert selection.importance is not None
            assert expected.importance is not None
            assert np.allclose(selection.importance, expected.importance, rtol=0, atol=1e-5)
            if read == "whole":
                assert selection.coverage == pytest.approx(expected.coverage)
                assert np.array_equal(selection.kept.positions, expected.kept.positions)


def test_an_answer_is_right_and_the_speculator_drafts_nothing(pair: Pair) -> None:
    asked = pair.ask(DOCUMENT.messages, keep_rate=0.1, max_tokens=24, sampling={"ignore_eos": True})
    assert pair._engines.drafts.metrics()["draft_requests"] == 0
    assert asked.text.strip().startswith(DOCUMENT.expected), asked.text
    plain = replace(asked.prompt, session=None, look_ahead_tokens=np.empty(0, np.int32))
    again = pair.generate(plain, max_tokens=24, sampling={"ignore_eos": True})
    assert again.completions[0].token_ids.tolist() == asked.completions[0].token_ids.tolist()


def test_scores_are_the_oracle_s_at_the_same_characters(tmp_path: Path) -> None:
    """Another segmentation: the importance of each token of the target is the mean of its characters."""
    speculator = build_model(tmp_path / "speculator", "llama")
    target = model_without_weights(tmp_path / "target", "byte_level")
    text = "The quick fox sees 42 lamps near the naïve mill, 👍🏽 twice.\n" * 12
    prompt = tokenizer_of("byte_level")(text, return_offsets_mapping=True)
    with Pair(speculator=speculator, reads_for=target, speculator_options={**OPTIONS, "dtype": "float32"}) as pair:
        selection = pair.select(text, keep_rate=0.3)
    own = tokenizer_of("demo")(text, return_offsets_mapping=True)
    assert len(own.input_ids) > 1.5 * len(prompt.input_ids)
    scores = scoring_oracle.score(load_model(speculator), own.input_ids, SelectionOptions(keep_rate=0.3))
    of_character = [[] for _ in text]
    for score, (start, end) in zip(scores.importance.tolist(), own.offset_mapping, strict=True):
        for place in range(start, end):
            of_character[place].append(score)
    means = [np.mean(values) for values in of_character]
    expected = [np.mean(means[start:end]) for start, end in prompt.offset_mapping]
    assert selection.importance is not None
    assert np.allclose(selection.importance, expected, rtol=0, atol=1e-5)
    assert selection.kept.context_length == len(prompt.input_ids)
