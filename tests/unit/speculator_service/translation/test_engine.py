"""A speculator with another tokenizer behind the engine interface and the selection service."""

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.messages import SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim_common.errors import InvalidRequestError, SessionLostError
from skim_common.models.info import check_pair, inspect_model
from speculator_service.engine import ScoreRequest
from speculator_service.service import SpeculatorService
from speculator_service.translation import TranslatingSpeculator, translated, translation_for
from tests.reference.tokenizers_by_kind import model_without_weights, tokenizer_of
from tests.unit.kv_transfer.layouts import layout_of

PROMPT = (
    "<|im_start|>user\n"
    + "The quick fox jumps over 42 lamps, naïve 👍🏽. " * 20
    + "<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return model_without_weights(tmp_path_factory.mktemp("pair") / "target", "byte_level")


@pytest.fixture
def mock(demo_speculator):
    return MockSpeculator(demo_speculator)


@pytest.fixture
def engine(mock, demo_speculator, target):
    return translated(mock, translation_for(demo_speculator, target))


@pytest.fixture
def prompt():
    return np.array(tokenizer_of("byte_level")(PROMPT).input_ids, np.int32)


def test_it_reports_the_target_s_vocabulary(engine, mock, target):
    assert isinstance(engine, TranslatingSpeculator)
    check_pair(engine.info, inspect_model(target, engine="mock"))
    assert (engine.info.path, engine.info.engine) == (mock.info.path, "mock")


def test_with_one_tokenizer_the_engine_stays_as_it_is(mock, demo_speculator, pytestconfig):
    one = str(pytestconfig.rootpath / "demo_models" / "target")
    assert translated(mock, translation_for(demo_speculator, one)) is mock


def test_a_target_on_another_machine_counts_as_one_with_the_same_tokenizer(demo_speculator, caplog, tmp_path):
    assert translation_for(demo_speculator, str(tmp_path / "elsewhere")) is None
    assert "one tokenizer for both models is assumed" in caplog.text


async def test_regions_count_the_target_s_tokens(engine, prompt):
    options = SelectionOptions(keep_rate=0.01, protect_last=1)
    request = SelectRequest("r", prompt, options, layout_of((), [(64, 192, 1.0)]))
    selection = await SpeculatorService(engine).select(request)
    assert prompt.size == 288
    assert set(range(64, 192)) <= set(selection.kept.positions.tolist())
    assert selection.kept.positions.size <= 128 + 32 + 1


async def test_scores_are_those_of_the_speculator_s_tokens_at_the_same_text(engine, mock, prompt):
    scores = await engine.score(ScoreRequest("r", prompt, SelectionOptions(look_ahead=0)))
    assert scores.importance.shape == prompt.shape
    own = mock_reading(prompt)
    inner = (await mock.score(ScoreRequest("r", own.ids, SelectionOptions(look_ahead=0)))).importance
    assert own.ids.size != prompt.size
    assert np.array_equal(scores.importance, own.importance(inner))
    assert scores.look_ahead_tokens == []


def mock_reading(prompt):
    from skim_common.models.token_text import TokenText
    from speculator_service.translation import Translator

    return Translator(TokenText(tokenizer_of("demo"), "a"), TokenText(tokenizer_of("byte_level"), "b")).read(prompt)


async def test_the_question_is_the_same_text_in_the_speculator_s_tokens(engine, mock, prompt, monkeypatch):
    asked = []

    async def score(request):
        asked.append(request.questions)
        return await MockSpeculator.score(mock, request)

    monkeypatch.setattr(mock, "score", score)
    options = SelectionOptions(scoring="heads")
    start, end = 10, 25
    await engine.score(ScoreRequest("r", prompt, options, questions=((start, end),)))
    await engine.score(ScoreRequest("r", prompt, options))
    [((first, last),), unknown] = asked
    assert unknown == ()
    read = mock_reading(prompt)
    text = tokenizer_of("byte_level").decode(prompt[start:end])
    assert text in "".join(tokenizer_of("demo").decode(read.ids[first:last]))
    # Without its first or last token the text is not complete.
    assert read.spans[first + 1, 0] > read.target_spans[start, 0]
    assert read.spans[last - 2, 1] < read.target_spans[end - 1, 1]


async def test_a_selection_counts_the_target_s_tokens(engine, prompt):
    chunk, spans = 16, [(0, 4), (prompt.size - 6, prompt.size)]
    options = SelectionOptions(keep_rate=0.25, chunk_size=chunk, protect_last=1)
    selection = await SpeculatorService(engine).select(
        SelectRequest("r", prompt, options, layout_of(spans), return_importance=True)
    )
    kept = selection.kept
    assert kept.context_length == prompt.size
    assert np.array_equal(kept.token_ids, prompt[kept.positions])
    chunks = -(-prompt.size // chunk)
    assert -(-chunks // 4) * chunk - chunk < kept.positions.size <= (-(-chunks // 4)) * chunk + 10
    assert {0, 1, 2, 3, prompt.size - 1} <= set(kept.positions.tolist())
    assert selection.importance.shape == prompt.shape
    assert selection.importance[kept.positions].sum() / selection.importance.sum() == pytest.approx(selection.coverage)


async def test_the_speculator_s_own_tokens_count_against_its_limit(demo_speculator, target, prompt):
    own = mock_reading(prompt).ids.size
    short = MockSpeculator(demo_speculator, max_model_len=own + 7)
    engine = translated(short, translation_for(demo_speculator, target))
    assert engine.info.max_model_len == short.info.max_model_len
    await engine.score(ScoreRequest("r", prompt, SelectionOptions(look_ahead=7)))
    with pytest.raises(
        InvalidRequestError, match=rf"{own} tokens in the speculator's own tokenizer.* at most {own + 7}"
    ):
        await engine.score(ScoreRequest("r", prompt, SelectionOptions(look_ahead=8)))


async def test_it_selects_and_does_not_draft(engine, prompt):
    service = SpeculatorService(engine, "127.0.0.1:1")
    kept = (await service.select(SelectRequest("r", prompt, decode=DecodeOptions()))).kept
    assert (kept.session, kept.look_ahead_tokens.size) == (None, 0)
    with pytest.raises(SessionLostError):
        await engine.draft("r", np.empty(0, np.int32), 2)
