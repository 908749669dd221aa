"""`skim eval` with the router's HTTP app: an endpoint gets the same prompts as engines in this process."""

import json

import httpx
import pytest
from transformers import AutoTokenizer

from evals.questions.endpoint import QuestionEndpoint
from evals.questions.file import Question
from evals.questions.samples import draw
from evals.questions.ways import BM25, DEFAULT, NO_DOCUMENT, WAYS, QuestionEngines
from evals.run.ask import Engines
from evals.run.endpoint import Endpoint
from evals.tasks.registry import make_samples
from skim_common.errors import SkimError
from tests.unit.evals.questions.texts import CHOICES, TEXT
from tests.unit.router.conftest import MODELS

ASKED = {"keep_rates": (0.2, 0.5), "look_ahead": 8, "max_tokens": 8}


@pytest.fixture
def endpoint(served, pools):
    client = httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://router", timeout=60)
    return Endpoint("http://router", http_client=client, **ASKED)


@pytest.fixture
def of_questions(served, pools):
    client = httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://router", timeout=60)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    return QuestionEndpoint("http://router", http_client=client, tokenizer=tokenizer, selectors=WAYS, **ASKED)


@pytest.fixture(scope="module")
def question():
    asked = Question(1, "choice", TEXT, "What leaks, said the guest?", (), ("B",), tuple(CHOICES), "choice")
    [sample] = draw([asked], 1, 0, len)
    return sample


@pytest.fixture(scope="module")
def sample():
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")

    def tokens(text):
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    [sample] = make_samples(["multi_key"], [1024], 1, seed=0, style="plain", tokens=tokens)
    return sample


@pytest.mark.asyncio(loop_scope="session")
async def test_an_endpoint_serves_what_the_engines_of_one_process_are_given(endpoint, use_pools, sample):
    profile = {"head_profile": True}  # so that windows are read
    pools = use_pools(speculator=profile)
    pair = (str(MODELS / "target"), str(MODELS / "speculator"))
    engines = Engines(*pair, engine="mock", target_options={}, speculator_options=profile, **ASKED)
    here, there = await engines.ask(sample), await endpoint.ask(sample)
    # The mock's answer is a hash of the kept ids, their positions and the context length.
    assert there == {case: here[case] for case in there}
    served = {"dense", "speculator", "look-ahead 0", "auto", "heads", "heads, windows", "lexical"}
    assert {name for name, _ in there} == served
    assert len({answer.text for answer in there.values()}) > 1
    assert len(pools.generates) == 12


@pytest.mark.asyncio(loop_scope="session")
async def test_a_prompt_that_fell_back_to_dense_does_not_count(endpoint, pools, sample):
    pools.select_error = SkimError("the speculator is on holiday")
    with pytest.raises(SkimError, match=r"ran a speculative prompt dense \(speculator-error\)"):
        await endpoint.ask(sample)


@pytest.mark.asyncio(loop_scope="session")
async def test_questions_are_asked_of_an_endpoint_as_in_one_process(
    of_questions, served, use_pools, question, monkeypatch
):
    of_tests = served.dispatcher.defaults
    monkeypatch.setattr(served.dispatcher, "defaults", of_tests.model_copy(update={"selector": "auto"}))
    profile = {"head_profile": True}
    use_pools(speculator=profile)
    pair = (str(MODELS / "target"), str(MODELS / "speculator"))
    engines = QuestionEngines(
        *pair, engine="mock", selectors=list(WAYS), target_options={}, speculator_options=profile, **ASKED
    )
    here, there = await engines.ask(question), await of_questions.ask(question)
    assert [*there] == of_questions.cases
    assert {name for name, _ in there} == {"dense", DEFAULT, BM25, NO_DOCUMENT}
    assert {case: answer.text for case, answer in there.items()} == {case: here[case].text for case in there}
    assert {case: answer.read for case, answer in there.items()} == {case: here[case].read for case in there}
    assert there[DEFAULT, 0.0].kept < 1
    assert there[NO_DOCUMENT, 0.0].kept < 0.1


@pytest.mark.asyncio(loop_scope="session")
async def test_a_question_whose_selection_failed_does_not_count(of_questions, pools, question):
    pools.select_error = SkimError("the speculator is on holiday")
    with pytest.raises(SkimError, match=r"ran a speculative prompt dense \(speculator-error\)"):
        await of_questions.ask(question)


@pytest.mark.parametrize(
    ("reason", "enabled"),
    [
        ("cached;dense=120;speculative=340", ["auto", "always"]),
        ("guard-whole-text", ["auto"]),
        ("short-prompt", ["auto"]),
    ],
)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_prompt_that_ran_dense_for_its_time_alone_is_asked_again(question, reason, enabled):
    seen = []

    def answer(request):
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"object": "list", "data": [{"id": "big", "object": "model"}]})
        wish = json.loads(request.content)["speculative_prefill"]
        seen.append(wish)
        mode = "speculative" if wish and wish["enabled"] == "always" else "dense"
        headers = {"x-skim-mode": mode, "x-skim-reason": reason, "x-skim-prompt-tokens": "3000"}
        headers["x-skim-kept-tokens"] = "900" if mode == "speculative" else "3000"
        message = {"role": "assistant", "content": mode}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "big", "choices": [choice]}
        return httpx.Response(200, json=body, headers=headers)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    asker = QuestionEndpoint(
        "http://router", http_client=client, tokenizer=None, selectors=[DEFAULT], keep_rates=(), look_ahead=8,
        max_tokens=8,
    )  # fmt: skip
    answers = await asker.ask(question)
    assert seen[0] is False
    assert [wish["enabled"] for wish in seen[1:]] == enabled
    assert answers[DEFAULT, 0.0].kept == (0.3 if enabled[-1] == "always" else 1)
