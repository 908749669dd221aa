"""`selector: auto`, the default: the words select where they place the question, and else the speculator reads."""

from dataclasses import replace

import pytest

from demo_models.documents import make_document
from router.prompt.rendered import RenderedPrompt
from tests.unit.router.asking import ENDPOINTS, ask, request_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOCUMENT = make_document(1500, seed=2)
PLACED, UNPLACED = DOCUMENT.question, "Quelle girafe bondit?"


def asked_about(question, path="/v1/chat/completions", **options):
    document = replace(DOCUMENT, question=question)
    return request_body(path, document, speculative_prefill={"selector": "auto", "keep_rate": 0.2, **options})


async def selected(client, use_pools, body, speculator=None, path="/v1/chat/completions"):
    """The selector and the number in x-skim-reason, and how often the speculator's model read."""
    pools = use_pools(speculator={"head_profile": True})
    pools.speculator = replace(pools.speculator, **(speculator or {}))
    answer = await ask(client, path, body)
    assert answer.headers["x-skim-mode"] == "speculative"
    values = answer.headers["x-skim-reason"].split(";")[1:]
    notes = dict(value.split("=") for value in values)
    [request] = pools.selects
    assert notes.get("selector", request.options.selector) == request.options.selector
    return request.options.selector, notes.get("placed"), pools.speculator_engine.started


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_words_that_place_the_question_select_and_nothing_is_read(client, use_pools, path):
    selector, placed, reads = await selected(client, use_pools, asked_about(PLACED, path), path=path)
    assert (selector, reads) == ("lexical", 0)
    assert 0.3 <= float(placed) <= 1


async def test_a_question_that_words_do_not_place_is_read(client, use_pools):
    """The control of the test above."""
    selector, placed, reads = await selected(client, use_pools, asked_about(UNPLACED))
    assert (selector, reads > 0) == ("speculator", True)
    assert float(placed) < 0.3


@pytest.mark.parametrize(
    ("options", "speculator"),
    [
        ({"selector": "speculator"}, {}),
        ({"scoring": "attention"}, {}),
        ({"look_ahead": 8}, {}),
        ({"layers": "last4"}, {}),
        ({"granularity": "chunk"}, {}),
        ({}, {"gain_over_words": 0.05}),
    ],
)
async def test_what_asks_for_the_speculator_is_read_and_no_word_looked_up(client, use_pools, options, speculator):
    selector, placed, reads = await selected(client, use_pools, asked_about(PLACED, **options), speculator)
    assert (selector, placed, reads > 0) == ("speculator", None, True)


@pytest.mark.parametrize(("options", "speculator"), [({"scoring": "auto"}, {}), ({}, {"gain_over_words": 0.04})])
async def test_what_does_not_ask_for_it_is_not_read(client, use_pools, options, speculator):
    selector, _, reads = await selected(client, use_pools, asked_about(PLACED, **options), speculator)
    assert (selector, reads) == ("lexical", 0)


async def test_the_words_of_a_prompt_that_runs_dense_are_not_looked_up(client, use_pools, monkeypatch):
    calls, layout = [], RenderedPrompt.layout

    def counted(*given):
        calls.append(given)
        return layout(*given)

    monkeypatch.setattr(RenderedPrompt, "layout", counted)
    use_pools()
    body = asked_about(PLACED, min_prompt_tokens=4000)
    assert (await ask(client, "/v1/chat/completions", body)).headers["x-skim-mode"] == "dense"
    assert not calls
    body = asked_about(PLACED)
    assert (await ask(client, "/v1/chat/completions", body)).headers["x-skim-mode"] == "speculative"
    assert len(calls) == 1, "the control: once, for the decision and the selection"


async def test_drafts_are_of_the_kept_prompt(client, use_pools):
    pools = use_pools()
    await ask(client, "/v1/chat/completions", asked_about(PLACED) | {"max_tokens": 64})
    assert pools.generates[0].prompt.session is not None


async def test_a_selection_alone_and_its_explanation(client, use_pools):
    for question, selector in ((PLACED, "lexical"), (UNPLACED, "speculator")):
        pools = use_pools()
        body = {"text": DOCUMENT.document, "question": question, "speculative_prefill": {"selector": "auto"}}
        answer = (await client.post("/v1/select", json=body)).raise_for_status()
        assert answer.headers["x-skim-reason"].startswith(f"selection-only;selector={selector};placed=")
        assert pools.selects[0].options.selector == selector
        shown = (await client.get(f"/v1/requests/{answer.json()['id']}/selection")).json()
        assert (shown["options"]["selector"], float(shown["decision"]["placed"]) >= 0.3) == (
            selector,
            selector == "lexical",
        )


@pytest.mark.parametrize(("question", "status"), [(PLACED, 200), (UNPLACED, 400)])
async def test_words_select_from_a_text_that_the_speculator_cannot_read(client, use_pools, question, status):
    use_pools(speculator={"max_model_len": 256})
    body = {"text": DOCUMENT.document, "question": question, "speculative_prefill": {"selector": "auto"}}
    answer = await client.post("/v1/select", json=body)
    assert answer.status_code == status
    assert ("the speculator reads at most 256" in answer.text) == (status == 400)


async def test_a_turn_extends_what_the_other_selector_kept(client, use_pools):
    from speculator_service.selection.records import Records

    pools = use_pools()
    pools.records = Records()
    await ask(client, "/v1/chat/completions", asked_about(PLACED))
    body = asked_about(PLACED)
    body["messages"] += [{"role": "assistant", "content": "4821."}, {"role": "user", "content": UNPLACED}]
    answer = await ask(client, "/v1/chat/completions", body)
    assert [request.options.selector for request in pools.selects] == ["lexical", "speculator"]
    assert int(answer.headers["x-skim-reused-tokens"]) > 0
