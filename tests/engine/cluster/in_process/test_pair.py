"""`Pair` on vLLM with the demo models: right answers from a tenth of the prompt, with and without drafts."""

import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.commands.demo_document import DemoDocument, make_document
from cluster.in_process.pair import Pair
from cluster.in_process.prompts import render
from cluster.in_process.selection import PairSelection
from kv_transfer.messages import DecodeOptions, GenerateOutput, KeptPrompt, SelectionOptions, WarmUpRequest
from router.warm_up import continued, next_conversation, start_of_next_turn
from speculator_service.service import SpeculatorService
from target_service.warm_up import warm_up

MODELS = Path(__file__).parents[4] / "demo_models"
OPTIONS = {"enforce_eager": True, "max_model_len": 4096}
DOCUMENTS = [make_document(2048, seed) for seed in (3, 4, 5)]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Fixed drafts, so that every step verifies some."""
    with Pair(
        MODELS / "target",
        MODELS / "speculator",
        target_options={**OPTIONS, "draft_channel": {"deadline_s": 20.0}},
        speculator_options=OPTIONS,
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
    before = pair._pair.drafts.metrics()
    asked = pair.ask(DOCUMENTS[0].messages, keep_rate=0.1, max_tokens=24, sampling={"ignore_eos": True})
    after = pair._pair.drafts.metrics()
    assert after["drafts"] > before["drafts"]
    assert asked.prompt.session is not None
    plain = replace(asked.prompt, session=None, look_ahead_tokens=np.empty(0, np.int32))
    again = pair.generate(plain, max_tokens=24, sampling={"ignore_eos": True})
    assert pair._pair.drafts.metrics()["draft_requests"] == after["draft_requests"]
    assert again.text == asked.text


def test_a_selection_is_answered_from_a_file(pair: Pair, tmp_path: Path) -> None:
    document = DOCUMENTS[1]
    selection = pair.select(document.messages, keep_rate=0.1)
    selection.save(tmp_path / "kept.json")
    assert "session" not in json.loads((tmp_path / "kept.json").read_text())
    assert document.is_right(pair.generate(PairSelection.load(tmp_path / "kept.json"), max_tokens=8).text)
    assert document.is_right(pair.generate(selection, max_tokens=8).text)


@pytest.mark.parametrize("warm", [True, False])
def test_the_start_of_the_next_turn_is_read_ahead(pair: Pair, *, warm: bool) -> None:
    """An answer that no engine has generated, as where a template rewrites it. The control reads nothing ahead."""
    document, engines = make_document(1000, seed=20 + warm), pair._pair
    answer = "The " + make_document(300, seed=30).document
    turns = next_conversation(document.messages, answer)
    first, second = render(document.messages, engines.tokenizer), render(turns, engines.tokenizer)
    text = engines.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    offsets = engines.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    following = start_of_next_turn(text, second.token_ids.tolist(), offsets)

    async def read() -> tuple[int, int]:
        """The tokens of the second turn that the speculator and the target take from their caches."""
        selection = await engines.select(first, SelectionOptions(keep_rate=0.2))
        await _outputs(engines.generate(selection.kept, {"max_tokens": 1}))
        kept = continued(selection.kept, first.token_ids.tolist(), following)
        if warm:
            service = SpeculatorService(engines.speculator)
            assert await service.warm_up(WarmUpRequest("next", KeptPrompt.dense(following), "r"))
            assert await warm_up(engines.target, WarmUpRequest("next", kept, "r"))
        before = (await engines.speculator.worker_stats())[0]["cached_tokens"]
        await engines.select(second, SelectionOptions(look_ahead=0))
        spared = (await engines.speculator.worker_stats())[0]["cached_tokens"] - before
        more = second.token_ids[following.size :]
        [output, *_] = await _outputs(engines.generate(kept.extended(more), {"max_tokens": 1}))
        return int(spared), output.cached_tokens - selection.kept.token_ids.size

    speculator, target = pair._thread.run(read())
    assert (speculator > first.token_ids.size + 200) == warm
    assert (target > 100) == warm


async def _outputs(stream: AsyncGenerator[GenerateOutput, None]) -> list[GenerateOutput]:
    return [output async for output in stream]
