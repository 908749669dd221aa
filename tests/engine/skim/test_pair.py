"""`Pair` on vLLM with the demo models: right answers from a tenth of the prompt, with and without drafts."""

import gc
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from demo_models.documents import DemoDocument, make_document
from evals.run.turns import make_conversations, without_late_chunks
from evals.tasks.registry import Sample
from kv_transfer.messages import FINAL_ONLY, Selection, SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from router.options.request import PrefillOptions
from skim.engines import PairEngines
from skim.pair import Pair
from skim.prompts import render
from skim.selection import PairSelection

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "demo_models"
BLOCK = 32
OPTIONS = {"enforce_eager": True, "max_model_len": 4096}
DOCUMENTS = [make_document(2048, seed) for seed in (3, 4, 5)]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Fixed drafts, so that every step verifies some."""
    with Pair(
        MODELS / "target",
        MODELS / "speculator",
        target_options={**OPTIONS, "block_size": BLOCK, "draft_channel": {"deadline_s": 20.0}},
        speculator_options=OPTIONS,
        prefill=PrefillOptions(selector="speculator"),
        decode=DecodeOptions(adaptive=False),
    ) as pair:
        yield pair


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.expected)
def test_a_tenth_of_the_prompt_is_enough(pair: Pair, document: DemoDocument) -> None:
    asked = pair.ask(document.messages, keep_rate=0.1, max_tokens=8)
    assert document.is_right(asked.text), asked.text
    assert asked.reason == "requested"
    assert asked.prompt.token_ids.size < 0.2 * asked.prompt.context_length
    assert asked.timings.keys() == {"queue", "prefill"}


def test_the_speculator_drafts_the_answer(pair: Pair) -> None:
    """Past the end token, so that more is decoded than the look-ahead tokens cover."""
    before = pair._engines.drafts.metrics()
    asked = pair.ask(DOCUMENTS[0].messages, keep_rate=0.1, max_tokens=24, sampling={"ignore_eos": True})
    after = pair._engines.drafts.metrics()
    assert after["drafts"] > before["drafts"]
    assert asked.prompt.session is not None
    plain = replace(asked.prompt, session=None, look_ahead_tokens=np.empty(0, np.int32))
    again = pair.generate(plain, max_tokens=24, sampling={"ignore_eos": True})
    assert pair._engines.drafts.metrics()["draft_requests"] == after["draft_requests"]
    assert again.text == asked.text


def test_a_selection_is_answered_from_a_file(pair: Pair, tmp_path: Path) -> None:
    document = DOCUMENTS[1]
    selection = pair.select(document.messages, keep_rate=0.1)
    selection.save(tmp_path / "kept.json")
    assert "session" not in json.loads((tmp_path / "kept.json").read_text())
    assert document.is_right(pair.generate(PairSelection.load(tmp_path / "kept.json"), max_tokens=8).text)
    assert document.is_right(pair.generate(selection, max_tokens=8).text)


def test_the_documented_example_runs(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With this module's engines, which run the models that the example names."""

    def opened(*, target: str, speculator: str) -> AbstractContextManager[Pair]:
        assert (ROOT / target, ROOT / speculator) == (MODELS / "target", MODELS / "speculator")
        return nullcontext(pair)

    page = (ROOT / "docs" / "python.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.setattr("skim.Pair", opened)
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    first, second = capsys.readouterr().out.strip().splitlines()
    document = make_document(2048, seed=7)
    assert document.is_right(first.split(" from ")[0])
    assert re.search(r" from \d{3} of 2\d{3} tokens$", first)
    assert document.is_right(second)


@pytest.mark.parametrize("draft_context", ["full", "kept"])
def test_later_turns_extend_the_first(pair: Pair, draft_context: str) -> None:
    """The target reads late chunks, question and template; it has the rest in its prefix cache.

    Negative control: without the late chunks, later answers are wrong.
    """
    right = {"extended": 0, "no late chunks": 0}
    tokenizer = pair._engines.tokenizer
    made = make_conversations(3, [2048], 3, seed=3, style="plain", tokens=lambda text: len(tokenizer(text).input_ids))
    for number, conversation in enumerate(made):
        salt, before = f"{draft_context} {number}", 0
        for turn, sample in enumerate(conversation):
            decode = DecodeOptions(adaptive=False, draft_context=draft_context)
            selection, cached, text = pair._thread.call(_turn, pair._engines, sample, salt, decode)
            if turn:
                assert selection.reused_tokens == before
                assert cached >= before // BLOCK * BLOCK
                assert selection.cached_tokens > 0.9 * 2048
                right["extended"] += sample.quiz.score(text) == 1
                without = pair.generate(without_late_chunks(selection), max_tokens=8).text
                right["no late chunks"] += sample.quiz.score(without) == 1
            before = selection.kept.token_ids.size
    assert right["extended"] == 6
    assert right["no late chunks"] <= 3


async def _turn(pair: PairEngines, sample: Sample, salt: str, decode: DecodeOptions) -> tuple[Selection, int, str]:
    """The selection of a turn, the target's cached tokens, and the answer."""
    prompt = render(sample.messages, pair.tokenizer)
    options = SelectionOptions(keep_rate=0.1)
    name, layout = pair.name("select"), prompt.layout(PrefillOptions())
    request = SelectRequest(name, prompt.token_ids, options, layout, cache_salt=salt, decode=decode)
    selection = await pair.select(request)
    sampling = {"max_tokens": 8, "temperature": 0.0, "output_kind": FINAL_ONLY}
    [output] = [o async for o in pair.generate(selection.kept, sampling, decode=decode, cache_salt=salt)]
    return selection, output.cached_tokens, output.completions[0].text


def engines() -> set[int]:
    """The engine processes of this process that run."""
    found = psutil.Process().children(recursive=True)
    return {one.pid for one in found if "EngineC" in one.name() and one.status() != psutil.STATUS_ZOMBIE}


def test_a_pair_that_is_dropped_leaves_no_engine() -> None:
    before = engines()
    pair = Pair(speculator=MODELS / "speculator", speculator_options=OPTIONS)
    own = engines() - before
    assert own
    assert pair.select(DOCUMENTS[0].messages).coverage
    del pair
    gc.collect()
    assert not own & engines()
