"""Real weights and real text: SmolLM2 reads for itself. Scores and answers against the oracle."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions, SelectionOptions
from router.options.request import PrefillOptions
from skim.pair import Pair
from tests.reference import scoring_oracle
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.models import load_model
from tests.reference.real_documents import CODE, KEEPER, RealDocument

pytestmark = pytest.mark.nightly

OPTIONS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 2048,
    "max_num_batched_tokens": 512,
    "num_gpu_blocks_override": 128,
}
TOLERANCE = 1e-4
"""On scores: float32 through 30 layers; the largest score of these prompts is about 1."""


@pytest.fixture(scope="module")
def pair(smollm2: Path) -> Iterator[Pair]:
    """Fixed drafts, so that every step verifies some."""
    with Pair(
        smollm2,
        smollm2,
        target_options={**OPTIONS, "draft_channel": {"deadline_s": 20.0}},
        speculator_options=OPTIONS,
        prefill=PrefillOptions(selector="speculator"),
        decode=DecodeOptions(adaptive=False),
    ) as pair:
        yield pair


def test_scores_of_real_text_are_the_oracles(pair: Pair, smollm2: Path) -> None:
    selection = pair.select(CODE.messages, keep_rate=1.0, look_ahead=2, granularity="chunk")
    token_ids = selection.kept.token_ids.tolist()
    oracle = scoring_oracle.score(load_model(smollm2), token_ids, SelectionOptions(look_ahead=2))
    assert selection.kept.look_ahead_tokens.tolist() == oracle.look_ahead_tokens
    np.testing.assert_allclose(selection.importance, oracle.importance.numpy(), atol=TOLERANCE)
    assert oracle.importance.max() > 100 * TOLERANCE


@pytest.mark.parametrize("document", [CODE, KEEPER], ids=["code", "keeper"])
def test_a_fifth_of_real_text_is_enough(pair: Pair, document: RealDocument) -> None:
    """The protected tokens are kept in addition, and the last unit is kept whole. The documents begin alike, so with
    reuse the later one would also keep what is cached of the earlier one.
    """
    answer = pair.ask(document.messages, keep_rate=0.19, max_tokens=24, min_prompt_tokens=1024, reuse="off")
    assert answer.prompt.token_ids.size < 0.25 * answer.prompt.context_length
    assert document.answer in answer.text


def test_without_the_fact_the_answer_is_wrong(pair: Pair) -> None:
    """Negative control: as many tokens, but those at the end of the prompt. The best unit would hold the fact."""
    whole = pair.select(CODE.messages, keep_rate=1.0).kept
    last = np.r_[0, whole.positions[-240:]]
    kept = KeptPrompt(whole.token_ids[last], whole.positions[last], whole.context_length)
    assert CODE.answer not in pair.generate(kept, max_tokens=24).text
    assert CODE.answer in pair.generate(whole, max_tokens=24).text


def test_a_drafted_answer_to_kept_real_text_is_the_oracles(pair: Pair, smollm2: Path) -> None:
    before = pair._engines.drafts.metrics()["drafts"]
    answer = pair.ask(
        KEEPER.messages, keep_rate=0.19, max_tokens=48, min_prompt_tokens=1024, sampling={"ignore_eos": True}
    )
    assert pair._engines.drafts.metrics()["drafts"] > before
    oracle = GenerationOracle(str(smollm2))
    tokens = answer.completions[0].token_ids.tolist()
    assert oracle.wrong_tokens(answer.prompt, tokens) == 0
    moved = replace(answer.prompt, positions=np.arange(answer.prompt.token_ids.size, dtype=np.int32))
    assert oracle.wrong_tokens(moved, tokens) > 0  # so positions matter in this text
