"""`Pair` on engines without weights: what it keeps, answers and refuses."""

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.mock_engines.target import mock_tokens
from cluster.config.load import load_config
from demo_models.documents import make_document
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions
from router.options.request import PrefillOptions
from skim.engines import PairEngines
from skim.pair import Pair
from skim.selection import PairSelection
from skim_common.errors import EngineUnavailableError, InvalidRequestError, ModelError, SkimError
from tests.unit.conftest import MODELS

SPECULATOR, TARGET = MODELS / "speculator", MODELS / "target"
EXAMPLE = MODELS.parent / "examples" / "demo.yaml"


@pytest.fixture(scope="module")
def pair():
    with Pair(TARGET, SPECULATOR, engine="mock") as pair:
        yield pair


@pytest.fixture(scope="module")
def messages():
    """A question about a document of more than 1024 tokens."""
    return make_document(1500, seed=1).messages


def test_a_selection_of_chat_messages_keeps_the_question(pair, messages):
    selection = pair.select(messages, keep_rate=0.1, look_ahead=3)
    kept = selection.kept
    assert 0.1 < kept.token_ids.size / kept.context_length < 0.3
    tokenizer = pair._engines.tokenizer
    assert messages[0]["content"].splitlines()[-1] in tokenizer.decode(kept.token_ids)
    assert (selection.options.keep_rate, selection.options.look_ahead) == (0.1, 3)
    assert selection.importance.shape == (kept.context_length,)
    assert 0 < selection.coverage < 1
    assert kept.look_ahead_tokens.size <= 3
    assert selection.timings.keys() >= {"select"}


@pytest.mark.parametrize(("options", "selector"), [({}, "lexical"), ({"scoring": "attention"}, "speculator")])
def test_words_select_where_they_place_the_question(pair, messages, options, selector):
    selection = pair.select(messages, keep_rate=0.1, reuse="off", **options)
    assert selection.options.selector == selector
    assert (selection.kept.look_ahead_tokens.size == 0) == (selector == "lexical")


def test_an_answer_comes_from_the_kept_tokens_at_their_positions(pair, messages):
    selection = pair.select(messages, keep_rate=0.1, reuse="off")
    answer = pair.generate(selection, max_tokens=5)
    [completion] = answer.completions
    vocabulary = pair._engines.target.info.vocab_size
    assert completion.token_ids.tolist() == mock_tokens(selection.kept, 5, vocabulary).tolist()
    assert answer.text == completion.text
    assert answer.prompt is selection.kept
    assert answer.reason is None
    assert completion.finish_reason == "length"


def test_ask_selects_and_generates(pair, messages):
    asked = pair.ask(messages, keep_rate=0.1, max_tokens=5, min_prompt_tokens=1)
    selection = pair.select(messages, keep_rate=0.1)
    assert asked.reason == "requested"
    assert asked.prompt.positions.tolist() == selection.kept.positions.tolist()
    assert asked.text == pair.generate(selection, max_tokens=5).text


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"enabled": False}, "disabled"), ({"keep_rate": 1.0}, "keep-all"), ({"min_prompt_tokens": 9999}, "short-prompt")],
)
def test_ask_runs_dense_where_serving_does(pair, messages, options, reason):
    asked = pair.ask(messages, max_tokens=5, **options)
    assert (asked.reason, asked.prompt.is_dense) == (reason, True)


def test_ask_may_refuse_to_lose_anything(pair, messages):
    with pytest.raises(SkimError, match=r"^\d+ of the prompt's \d+ tokens would be dropped, .* lossy allow"):
        pair.ask(messages, max_tokens=2, min_prompt_tokens=1, lossy="refuse")
    assert pair.ask(messages, max_tokens=2, min_prompt_tokens=1, lossy="refuse", keep_rate=1.0).reason == "keep-all"
    with pytest.raises(InvalidRequestError, match="options of ask"):
        pair.select(messages, lossy="refuse")


def test_prompt_logprobs_need_the_whole_prompt(pair, messages):
    asked = pair.ask(messages, max_tokens=2, min_prompt_tokens=1, sampling={"prompt_logprobs": 1})
    assert asked.reason == "prompt-logprobs"
    assert len(asked.prompt_logprobs) == asked.prompt.context_length


def test_several_completions_and_their_logprobs(pair):
    asked = pair.ask("A short text.", max_tokens=4, sampling={"n": 2, "logprobs": 1})
    assert [len(completion.logprobs) for completion in asked.completions] == [4, 4]


def test_defaults_are_given_once(messages):
    with Pair(TARGET, SPECULATOR, engine="mock", prefill=PrefillOptions(keep_rate=0.4, min_prompt_tokens=1)) as pair:
        assert pair.select("One two three.").options.keep_rate == 0.4
        assert pair.ask("word " * 200, max_tokens=2).reason == "requested"


def test_spans_that_are_asked_for_stay(pair):
    ids = np.arange(10, 510)
    kept = pair.select(ids, keep_rate=0.05, protected_spans=[[100, 110]]).kept.positions.tolist()
    assert {0, *range(100, 110)} <= set(kept)


def test_calls_work_where_an_event_loop_runs(pair, messages):
    async def cell():
        return pair.ask(messages, keep_rate=0.1, max_tokens=5).text

    assert asyncio.run(cell()) == pair.ask(messages, keep_rate=0.1, max_tokens=5).text


def test_calls_come_from_several_threads():
    options = {"latency_ms": 30}
    with Pair(TARGET, SPECULATOR, engine="mock", speculator_options=options) as pair, ThreadPoolExecutor(8) as threads:
        texts = list(
            threads.map(lambda seed: pair.ask(make_document(1200, seed).messages, max_tokens=5).text, range(8))
        )
        alone = [pair.ask(make_document(1200, seed).messages, max_tokens=5).text for seed in range(8)]
    assert texts == alone


def test_one_half_alone(messages):
    with Pair(speculator=SPECULATOR, engine="mock") as pair:
        selection = pair.select(messages)
        with pytest.raises(SkimError, match="without a target"):
            pair.generate(selection)
    with Pair(TARGET, engine="mock") as pair:
        assert pair.generate(selection, max_tokens=3).text
        assert pair.ask("Short prompts are not compressed.", max_tokens=3).reason == "short-prompt"
        with pytest.raises(SkimError, match="without a speculator"):
            pair.select(messages)
    with pytest.raises(SkimError, match="a target, a speculator or both"):
        Pair()


def test_a_pair_from_a_file_has_the_files_options(messages):
    config = load_config(EXAMPLE)
    mocks = {
        name: pool.model_copy(update={"engine": "mock", "engine_options": {}}) for name, pool in config.pools.items()
    }
    config = config.with_pools(mocks)
    selection = config.selection.model_copy(update={"keep_rate": 0.3})
    router = config.router.model_copy(update={"min_prompt_tokens": 5000})
    config = config.model_copy(update={"selection": selection, "router": router})
    with Pair.from_config(config) as pair:
        assert pair.select(messages).options.keep_rate == 0.3
        assert pair.ask(messages, max_tokens=2).reason == "short-prompt"
    with Pair.from_config(config, only="speculator") as pair:
        assert pair.select(messages).kept.session is None
        with pytest.raises(SkimError, match="without a target"):
            pair.ask("Hello.")


def test_a_pair_whose_search_fails_is_closed(monkeypatch):
    closed, close = [], PairEngines.close

    async def fails(pair):
        raise SkimError("the engine died")

    async def noted(pair):
        closed.append(pair)
        await close(pair)

    monkeypatch.setattr(PairEngines, "ensure_heads", fails)
    monkeypatch.setattr(PairEngines, "close", noted)
    with pytest.raises(SkimError, match="the engine died"):
        Pair(speculator=SPECULATOR, engine="mock")
    assert len(closed) == 1


def test_a_selection_goes_through_a_file(pair, messages, tmp_path):
    selection = pair.select(messages, keep_rate=0.1)
    selection.save(tmp_path / "kept.json")
    loaded = PairSelection.load(tmp_path / "kept.json")
    assert loaded.to_json() == selection.to_json()
    assert pair.generate(loaded, max_tokens=5).text == pair.generate(selection, max_tokens=5).text


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([1, 99999], "Token id 99999"),
        ([0.5], "a prompt is text, a list of token ids or a list of chat messages"),
        ([[1], [2, 3]], "a prompt is text"),
        ([2**40], "token ids are numbers"),
        ([-1], "token ids are numbers"),
        ([{"role": "user"}, "text"], "a prompt is text"),
    ],
)
def test_prompts_that_are_none(pair, prompt, message):
    with pytest.raises(InvalidRequestError, match=message):
        pair.select(prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_rate": 2.0}, r"keep_rate must be auto or a number > 0 and <= 1, not 2"),
        ({"keeprate": 0.2}, "unknown option speculative_prefill.keeprate"),
        ({"enabled": "always"}, "options of ask"),
        ({"catch_up": "off"}, "catch_up is an option of requests to a router"),
        ({"protected_spans": [[5, 100]]}, r"\[5, 100\]"),
    ],
)
def test_options_that_are_none(pair, options, message):
    with pytest.raises(InvalidRequestError, match=message):
        pair.select(list(range(10, 40)), **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "abacus"}, "unknown speculator engine 'abacus'"),
        ({"engine": "mock", "target_options": {"dtype": "float32"}}, "unknown mock target engine option 'dtype'"),
        ({"engine": "mock", "speculator_options": {"x": 1}}, "unknown mock speculator engine option 'x'"),
        ({"engine": "mock", "decode": DecodeOptions()}, "the mock target takes no drafts"),
        ({"engine": "mock", "prefill": PrefillOptions(catch_up="always")}, "catch_up is an option of requests to a"),
    ],
)
def test_pairs_that_cannot_start(settings, message):
    with pytest.raises(SkimError, match=message):
        Pair(TARGET, SPECULATOR, **settings)


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        Pair(TARGET, tmp_path / "no", engine="mock")


def test_remote_drafts_need_both_halves():
    with pytest.raises(SkimError, match="needs a speculator and a target"):
        Pair(TARGET, decode=DecodeOptions())


def test_a_closed_pair_says_so(messages):
    pair = Pair(TARGET, SPECULATOR, engine="mock")
    pair.close()
    pair.close()
    with pytest.raises(SkimError, match="this pair is closed"):
        pair.select(messages)
    with pytest.raises(SkimError, match="this pair is closed"):
        pair.ask(messages)


def test_an_error_of_the_engine_is_raised_here(messages):
    with Pair(TARGET, SPECULATOR, engine="mock", target_options={"fail_before_first": 1}) as pair:
        with pytest.raises(EngineUnavailableError, match="told to fail"):
            pair.ask(messages, max_tokens=2)
        assert pair.ask(messages, max_tokens=2).text


def test_ask_raises_where_serving_would_run_dense(pair, messages, monkeypatch):
    async def fails(self, request):
        raise EngineUnavailableError("the speculator is gone")

    monkeypatch.setattr(PairEngines, "select", fails)
    with pytest.raises(EngineUnavailableError, match="the speculator is gone"):
        pair.ask(messages, max_tokens=2, min_prompt_tokens=1)
    assert pair.ask(messages, max_tokens=2, enabled=False).text


def test_auto_never_compares_times(pair, messages):
    """However often it asks, a pair does not learn that dense is sooner: mocks take no time."""
    reasons = {pair.ask(messages, max_tokens=2, min_prompt_tokens=1, reuse="off").reason for _ in range(6)}
    assert reasons == {"requested"}


def test_a_whole_prompt(pair):
    answer = pair.generate(KeptPrompt.dense(range(10, 60)), max_tokens=2)
    assert answer.prompt.is_dense


def test_closing_stops_both_engines(monkeypatch):
    closed = []
    close = PairEngines.close

    async def noted(self):
        closed.append(self)
        await close(self)

    monkeypatch.setattr(PairEngines, "close", noted)
    with pytest.raises(ZeroDivisionError), Pair(TARGET, SPECULATOR, engine="mock"):
        raise ZeroDivisionError
    assert len(closed) == 1


def test_a_pair_of_a_hub(hub):
    """Of a mock only small files are downloaded. The answer is that of the same models in folders."""
    prompt = list(range(5, 105))
    with Pair("demo/target", "demo/speculator", engine="mock") as pair:
        answer = pair.ask(prompt, max_tokens=4, min_prompt_tokens=1, keep_rate=0.5)
    with Pair(MODELS / "target", MODELS / "speculator", engine="mock") as pair:
        expected = pair.ask(prompt, max_tokens=4, min_prompt_tokens=1, keep_rate=0.5)
    assert answer.completions[0].token_ids.tolist() == expected.completions[0].token_ids.tolist()
    assert answer.text == expected.text
    assert answer.prompt.positions.tolist() == expected.prompt.positions.tolist()
    assert {name for name, _, _ in hub.downloads} == {"demo/target", "demo/speculator"}
    assert "model.safetensors" not in {file for _, file, _ in hub.downloads}


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "a prompt is text"),
        (7, "a prompt is text"),
        ((word for word in "ab"), "a prompt is text"),
        ([None], "a prompt is text"),
        (b"bytes", "a prompt is text"),
        ("half \ud83d of a pair", r"half of a surrogate pair, '\\ud83d', which is no character"),
        ([{"role": "user", "content": "half \udc00"}], "half of a surrogate pair"),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud800", "keep": "always"}]}], "half of a surrogate"),
    ],
)
def test_prompts_of_other_types_are_refused(pair, prompt, message):
    for call in (pair.select, pair.ask):
        with pytest.raises(InvalidRequestError, match=message):
            call(prompt)


@pytest.mark.parametrize("selection", [None, "text", [1, 2]])
def test_generate_takes_selections_alone(pair, selection):
    with pytest.raises(InvalidRequestError, match="generate takes a selection"):
        pair.generate(selection)


def threads_of_pairs():
    return [thread for thread in threading.enumerate() if thread.name == "skim-pair"]


@pytest.fixture
def closed(monkeypatch):
    """Of each pair that is closed, the name of the thread in which it is."""
    closed, close = [], PairEngines.close

    async def noted(self):
        closed.append(threading.current_thread().name)
        await close(self)

    monkeypatch.setattr(PairEngines, "close", noted)
    return closed


@pytest.mark.parametrize("cyclic", [False, True])
def test_a_pair_that_is_dropped_is_closed(closed, cyclic):
    before = threads_of_pairs()
    pair = Pair(TARGET, SPECULATOR, engine="mock")
    assert len(threads_of_pairs()) == len(before) + 1
    if cyclic:
        pair.itself = pair
    del pair
    gc.collect()
    assert closed == ["skim-pair"]
    assert threads_of_pairs() == before


def test_a_pair_that_is_collected_in_its_own_thread_waits_for_nothing(closed):
    pair = Pair(speculator=SPECULATOR, engine="mock")
    thread = threads_of_pairs()[-1]

    async def collect():
        pair._thread.end()

    pair._thread.call(collect)
    thread.join(30)
    assert (closed, pair._thread._open, thread.is_alive()) == (["skim-pair"], False, False)


def test_a_closed_pair_that_is_dropped_is_not_closed_again(closed):
    with Pair(speculator=SPECULATOR, engine="mock") as pair:
        pass
    del pair
    gc.collect()
    assert len(closed) == 1


FORKED = f"""
import os, signal, sys
from skim.pair import Pair
from skim_common.errors import SkimError
signal.alarm(120)
pair = Pair({str(TARGET)!r}, {str(SPECULATOR)!r}, engine="mock")
if os.fork() == 0:
    for call in (lambda: pair.select("Hello."), lambda: pair.ask("Hello."), pair.close):
        try:
            call()
        except SkimError as error:
            print(error)
    sys.exit(0)
print("child", os.wait()[1])
print("parent", pair.ask("Hello.", max_tokens=2).reason, flush=True)
"""


def test_a_forked_process_is_told_that_the_pair_is_not_its_own():
    """It ends, too, with the pair open in both; the parent's goes on."""
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, cwd=MODELS.parent)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert all(line.startswith("this pair was opened before this process was forked") for line in said[:3])
    assert said[3:] == ["child 0", "parent short-prompt"]


def test_the_end_of_the_program_closes_a_pair():
    code = f"""
from skim import engines, pair
close = engines.PairEngines.close
async def noted(self):
    await close(self)
    print("closed", flush=True)
engines.PairEngines.close = noted
kept = pair.Pair({str(TARGET)!r}, {str(SPECULATOR)!r}, engine="mock")
print("open")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=MODELS.parent)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "open\nclosed\n", "")


def test_a_pair_remembers_what_it_kept(pair):
    """A prompt that begins like an earlier one extends that selection, unless the call wants a new one."""
    first = [900 - i % 800 for i in range(1200)]  # no other test's prompt begins so
    later = first + [20 + i for i in range(300)]
    kept = [pair.select(ids, keep_rate=0.2, reuse="on") for ids in (first, later)]
    assert (kept[0].reused_tokens, kept[1].reused_tokens) == (0, kept[0].kept.positions.size)
    assert pair.select(later, keep_rate=0.2, reuse="off").reused_tokens == 0
