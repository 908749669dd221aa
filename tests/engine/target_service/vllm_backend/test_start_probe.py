"""The start probe of a target: it sees broken hooks, without an oracle and with random weights."""

from pathlib import Path

import pytest

from target_service import start_probe
from target_service.start_probe import find_failure
from tests.engine.target_service.vllm_backend.broken_hooks import BreakableTarget
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.reference.models import build_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With embeddings for all tokens of its tokenizer, which reads text here."""
    return build_model(Path(tmp_path_factory.mktemp("llama")), "llama")


@pytest.fixture(scope="module")
def engine(start: Start) -> BreakableTarget:
    return start(BreakableTarget)


@pytest.mark.parametrize("shown", [20, 5, -1])
async def test_a_healthy_target(engine: BreakableTarget, model: str, shown: int) -> None:
    assert await find_failure(engine, model, max_logprobs=shown) is None


@pytest.mark.parametrize("shown", [20, 5, -1])
@pytest.mark.parametrize(
    ("how", "words"), [("withheld", "restored positions change nothing"), ("wrong_origin", "the second token")]
)
async def test_broken_positions(engine: BreakableTarget, model: str, how: str, words: str, shown: int) -> None:
    await engine.falsify_positions(how)
    failure = await find_failure(engine, model, max_logprobs=shown)
    await engine.falsify_positions("right")
    assert failure is not None
    assert words in failure


async def test_a_target_that_shows_few_candidates_is_trusted(engine: BreakableTarget, model: str) -> None:
    await engine.falsify_positions("withheld")
    failure = await find_failure(engine, model, max_logprobs=4)
    await engine.falsify_positions("right")
    assert failure is None


async def test_positions_of_another_text(engine: BreakableTarget, model: str) -> None:
    await engine.falsify_positions("wrapped")
    failure = await find_failure(engine, model)
    await engine.falsify_positions("right")
    assert failure is not None
    assert "where a kept prompt begins" in failure


async def test_without_rope_only_the_answer_is_compared(
    engine: BreakableTarget, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_probe, "_has_rope", lambda model: False)
    await engine.falsify_positions("withheld")
    failure = await find_failure(engine, model)
    await engine.falsify_positions("right")
    assert failure is None
