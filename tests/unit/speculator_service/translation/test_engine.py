"""A speculator with another tokenizer behind the engine interface, the selection service and the drafter."""

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.drafts import DraftRequest, DraftRow, SessionState
from kv_transfer.messages import KeptPrompt, SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim_common.errors import InvalidRequestError, SessionLostError
from skim_common.models.info import check_pair, inspect_model
from speculator_service.drafting.begin import begin_drafts
from speculator_service.drafting.drafter import DraftService
from speculator_service.engine import ScoreRequest
from speculator_service.service import SpeculatorService
from speculator_service.translation.engine import TranslatingSpeculator, translated, translation_for
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
    inner = (await mock.score(ScoreRequest("r", own.ids, SelectionOptions(look_ahead=0)))).importance.numpy()
    assert own.ids.size != prompt.size
    assert np.array_equal(scores.importance.numpy(), own.importance(inner))
    assert scores.look_ahead_tokens == []


def mock_reading(prompt):
    from speculator_service.translation.token_text import TokenText
    from speculator_service.translation.translator import Translator

    return Translator(TokenText(tokenizer_of("demo"), "a"), TokenText(tokenizer_of("byte_level"), "b")).read(prompt)


async def test_the_question_is_the_same_text_in_the_speculator_s_tokens(engine, mock, prompt, monkeypatch):
    asked = []

    async def score(request):
        asked.append(request.questions)
        return await MockSpeculator.score(mock, request)

    monkeypatch.setattr(mock, "score", score)
    options = SelectionOptions(score_queries="question")
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


class SpellingSpeculator(MockSpeculator):
    """Continues every prompt with one text, whatever it reads. asked: the answers in its own tokens."""

    def __init__(self, model, text):
        super().__init__(model)
        self.tokens = tokenizer_of("demo")(text).input_ids
        self.asked = []

    async def score(self, request):
        scores = await super().score(request)
        scores.look_ahead_tokens[:] = self.tokens[: len(scores.look_ahead_tokens)]
        return scores

    def _continue(self, session, answer, count, temperature, top_m):
        from speculator_service.engine import Drafted

        assert (temperature, top_m) == (0.0, 0)
        self.asked.append(answer.tolist())
        begin = len(answer) if self.tokens[: len(answer)] == answer.tolist() else len(self.tokens)
        return Drafted(np.array(self.tokens[begin : begin + count], np.int32))


@pytest.fixture
def spelling(demo_speculator, target):
    mock = SpellingSpeculator(demo_speculator, SPELLED)
    return mock, translated(mock, translation_for(demo_speculator, target))


SPELLED = "The quick brown fox, 👍🏽 naïve."


def in_target(text):
    return np.array(tokenizer_of("byte_level")(text).input_ids, np.int32)


def goes_on(answer, drafts):
    """Whether the drafts continue the answer as the speculator spells it; the last one may end inside a word."""
    text = tokenizer_of("byte_level").decode(np.concatenate([answer, drafts]))
    return drafts.size > 0 and SPELLED.startswith(text.rstrip("\N{REPLACEMENT CHARACTER}"))


async def test_drafts_are_in_the_target_s_tokens_and_one_hot(spelling, prompt):
    mock, engine = spelling
    scores = await engine.score(ScoreRequest("s", prompt, SelectionOptions(look_ahead=3), keep_session=True))
    assert scores.look_ahead_tokens == in_target("The q").tolist()  # three tokens of the speculator
    whole = in_target(SPELLED)
    answer = np.empty(0, np.int32)
    while answer.size < whole.size:
        drafted = await engine.draft("s", answer, 4, temperature=0.7, top_m=8)
        assert drafted.q_ids.size == drafted.q_probs.size == 0
        assert drafted.tokens.size <= 4
        assert goes_on(answer, drafted.tokens)
        answer = whole[: answer.size + 1]  # a target that takes one token of each
    assert all(mock.tokens[: len(asked)] == asked for asked in mock.asked)


async def test_an_answer_that_the_speculator_cannot_spell_gets_no_drafts(spelling, prompt):
    _, engine = spelling
    await engine.score(ScoreRequest("s", prompt, SelectionOptions(look_ahead=0), keep_session=True))
    byte = tokenizer_of("byte_level").convert_tokens_to_ids("ÿ")  # the byte 0xFF is in no UTF-8 text
    assert not (await engine.draft("s", np.array([byte] * 8, np.int32), 4)).tokens.size


async def test_sessions_end_and_are_lost(spelling, prompt):
    mock, engine = spelling
    with pytest.raises(SessionLostError):
        await engine.draft("s", np.empty(0, np.int32), 2)
    await engine.score(ScoreRequest("s", prompt, SelectionOptions(look_ahead=0), keep_session=True))
    await engine.close_session("s")
    assert "s" not in mock.sessions
    with pytest.raises(SessionLostError):
        await engine.draft("s", np.empty(0, np.int32), 2)


async def test_a_kept_prompt_is_opened_with_its_gaps(mock, engine, prompt):
    opened = []

    async def open_session(session, kept, *, cache_salt=None):
        opened.append((kept, cache_salt))

    mock.open_session = open_session
    kept = np.r_[0:10, 50:60, prompt.size - 5 : prompt.size]
    await engine.open_session("s", KeptPrompt(prompt[kept], kept.astype(np.int32), prompt.size), cache_salt="a")
    [(own, salt)] = opened
    assert salt == "a"
    gaps = np.diff(own.positions)
    assert sorted(gaps[gaps > 1].tolist()) == sorted([50 - 10 + 1, prompt.size - 5 - 60 + 1])
    assert own.context_length == own.positions[-1] + 1
    text = tokenizer_of("byte_level").decode(prompt[kept]).replace("<|im_start|>", "\n").replace("<|im_end|>", "\n")
    assert tokenizer_of("demo").decode(own.token_ids) == text


async def test_a_kept_prompt_in_another_order_is_opened_at_the_positions_of_its_text(mock, engine, prompt):
    """A chunk that stands behind a later one. The segments are opened in the given order, each at its own place."""
    opened = []

    async def open_session(session, kept, *, cache_salt=None):
        opened.append(kept)

    mock.open_session = open_session
    last = prompt.size - 5
    parts = [range(10), range(50, 60), range(30, 40), range(last, prompt.size)]
    ascending = [parts[0], parts[2], parts[1], parts[3]]
    for order in (ascending, parts):
        kept = np.concatenate(order).astype(np.int32)
        await engine.open_session("s", KeptPrompt(prompt[kept], kept, prompt.size))
    in_order, shuffled = opened
    assert not shuffled.is_ascending
    assert shuffled.context_length == in_order.context_length
    assert dict(zip(shuffled.positions.tolist(), shuffled.token_ids.tolist(), strict=True)) == dict(
        zip(in_order.positions.tolist(), in_order.token_ids.tolist(), strict=True)
    )
    text = tokenizer_of("byte_level").decode(prompt[np.concatenate(parts)])
    text = text.replace("<|im_start|>", "\n").replace("<|im_end|>", "\n")
    assert tokenizer_of("demo").decode(shuffled.token_ids) == text


async def test_the_drafter_answers_a_target_in_its_tokens(spelling, prompt):
    """The whole draft service: the first drafts, an accepted draft, and a restored session."""
    _, engine = spelling
    drafter = DraftService(engine)
    scores = await engine.score(ScoreRequest("s", prompt, SelectionOptions(look_ahead=2), keep_session=True))
    drafter.adopt("s", np.array(scores.look_ahead_tokens, np.int32))
    whole = in_target(SPELLED)
    first = await drafter.handle(DraftRequest(1, [DraftRow("s", 0, whole[:3], 2)]))
    assert goes_on(whole[:3], first.drafts[0].tokens)
    second = await drafter.handle(DraftRequest(2, [DraftRow("s", 3, whole[3:6], 2, 0.8, 4)]))
    assert goes_on(whole[:6], second.drafts[0].tokens)
    assert second.drafts[0].q_ids.size == 0
    state = SessionState("t", KeptPrompt.dense(prompt), whole[:3])
    await drafter.handle(DraftRequest(3, [], [state]))
    await drafter._sessions["t"].work
    third = await drafter.handle(DraftRequest(4, [DraftRow("t", 3, whole[3:4], 2)]))
    assert goes_on(whole[:4], third.drafts[0].tokens)
    await drafter.close()


async def test_a_session_of_the_service_drafts(engine, prompt):
    service, drafter = SpeculatorService(engine, "127.0.0.1:1"), DraftService(engine)
    for context in ("full", "kept"):
        request = SelectRequest(context, prompt, decode=DecodeOptions(draft_context=context))
        selection = await service.select(request)
        assert selection.kept.session.id == context
        begin_drafts(drafter, request, selection, service.draft_context(request))
        if reading := drafter._sessions[context].work:
            await reading
        await engine.draft(context, np.empty(0, np.int32), 2)
