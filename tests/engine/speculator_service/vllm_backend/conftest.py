"""Small float32 engines, one per module or shared, and the comparison of their answers with the transformers oracle."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from speculator_service.engine import ScoreRequest, Scores
from speculator_service.selection.select import select
from tests.reference import models, scoring_oracle
from tests.reference.generation_oracle import GenerationOracle

TOLERANCE = 1e-5


@dataclass
class Rig:
    """An engine and the oracle of the same checkpoint. generation: the oracle of drafts. cached: tokens from the prefix
    cache, of each prompt that was last scored."""

    engine: object
    oracle: object
    cached: tuple[int, ...] | list[int] = ()

    @cached_property
    def generation(self) -> GenerationOracle:
        return GenerationOracle(self.engine.info.path)

    async def score(self, token_ids, options, request_id="r", question=None) -> Scores:
        """The scores, with the importance as a tensor."""
        questions = (question,) if question else ()
        scores = await self.engine.score(
            ScoreRequest(request_id, np.array(token_ids, np.int32), options, questions=questions)
        )
        return replace(scores, importance=torch.from_numpy(scores.importance))

    async def errors(self, cases) -> list[float]:
        """Score (token ids, options) cases together. Returns the largest errors; asserts equal tokens and kept sets."""
        answers = await asyncio.gather(*(self.score(*case, f"r{i}") for i, case in enumerate(cases)))
        self.cached = [answer.cached_tokens for answer in answers]
        return [self.compare(*case, answer) for case, answer in zip(cases, answers, strict=True)]

    def compare(self, token_ids, options, answer) -> float:
        expected = scoring_oracle.score(self.oracle, token_ids, options)
        assert answer.importance.dtype == torch.float32
        assert answer.importance.shape == (len(token_ids),)
        assert answer.look_ahead_tokens == expected.look_ahead_tokens
        ours, theirs = select(answer.importance, options)[0], select(expected.importance, options)[0]
        error = (answer.importance - expected.importance).abs().max().item()
        if error <= TOLERANCE:
            assert np.array_equal(ours, theirs)
        return error

    async def keep(self, session, token_ids, options, **salt) -> KeptPrompt:
        """Score a prompt and keep its session."""
        prompt = KeptPrompt.dense(token_ids)
        request = ScoreRequest(session, prompt.token_ids, options, keep_session=True, **salt)
        self.cached = [(await self.engine.score(request)).cached_tokens]
        return prompt

    def check_greedy(self, prompt, answer, drafted, count) -> None:
        """Assert that the drafts are the greedy continuation of prompt and answer, without q."""
        assert drafted.tokens.size == count
        assert drafted.q_ids.size == drafted.q_probs.size == 0
        whole = [*answer.tolist(), *drafted.tokens.tolist()]
        likeliest = self.generation.logprobs(prompt, whole).argmax(-1)[answer.size :]
        assert drafted.tokens.tolist() == likeliest.tolist()

    def check_sampled(self, prompt, answer, drafted, count, temperature, top_m) -> None:
        """Assert that each draft is one of the top m and that q is their distribution at the temperature."""
        logprobs = self.generation.logprobs(prompt, [*answer.tolist(), *drafted.tokens.tolist()])[answer.size :]
        expected = (logprobs / temperature).softmax(-1).topk(top_m)
        q_ids, q = drafted.q_ids.reshape(count, top_m), drafted.q_probs.reshape(count, top_m)
        assert q.dtype == np.float32
        np.testing.assert_allclose(q.sum(1), 1, atol=1e-6)
        np.testing.assert_allclose(q, expected.values / expected.values.sum(-1, keepdim=True), rtol=2e-3, atol=1e-6)
        same = torch.from_numpy(q_ids).long().sort(-1).values == expected.indices.sort(-1).values
        assert same.float().mean() > 0.99  # the last tokens may swap with equally probable ones
        assert all(token in row for token, row in zip(drafted.tokens, q_ids, strict=True))

    async def steps(self) -> int:
        """The number of engine steps with sampling since the first call."""
        return (await self.counts())["steps"]

    async def counts(self) -> dict[str, int]:
        """Since the first call: engine steps that sampled, and resumes of scored requests after preemption."""

        def counts(worker):
            if hasattr(worker, "counts"):
                return worker.counts
            worker.counts = {"steps": 0, "resumed": 0}
            sample, update = worker.sample_tokens, worker._ledger.update

            def counted_sample(grammar_output):
                worker.counts["steps"] += 1
                return sample(grammar_output)

            def counted_update(output):
                known = worker._ledger.requests
                new = [request.req_id for request in output.scheduled_new_reqs]  # of the V2 runner, also resumed ones
                resumed = [*output.scheduled_cached_reqs.resumed_req_ids, *new]
                worker.counts["resumed"] += sum(request_id in known for request_id in resumed)
                return update(output)

            worker.sample_tokens, worker._ledger.update = counted_sample, counted_update
            return worker.counts

        return dict((await self.call(counts))[0])

    async def call(self, function) -> list:
        """Run `function(worker)` on every rank of the running engine; the negative controls break hooks this way."""
        return await self.engine._engine.collective_rpc(function)


async def follow(rig, name, prompt, rounds, seed):
    """Accept and reject drafts at random, and check the greedy drafts of each round. Returns the answer."""
    rng = np.random.default_rng(seed)
    answer = np.empty(0, np.int32)
    for _ in range(rounds):
        count = int(rng.integers(1, 7))
        drafted = await rig.engine.draft(name, answer, count)
        rig.check_greedy(prompt, answer, drafted, count)
        accepted = drafted.tokens[: rng.integers(0, count + 1)]
        other = rng.integers(16, 1024, 1).astype(np.int32)
        answer = np.concatenate([answer, accepted, other])
        if rng.random() < 0.1:  # the target shortens the answer
            answer = answer[: answer.size // 2]
    return answer


@asynccontextmanager
async def keys_of_other_layers(engine: Any) -> AsyncIterator[None]:
    """Meanwhile each layer's queries meet the keys of another layer: a negative control."""

    def swap(worker):
        read = worker._keys.read
        worker._keys.read = lambda layers, *args: read(layers[::-1], *args)

    def as_before(worker):
        del worker._keys.read

    await engine._engine.collective_rpc(swap)
    try:
        yield
    finally:
        await engine._engine.collective_rpc(as_before)


@contextmanager
def starting(device: str, folders: pytest.TempPathFactory) -> Iterator[Callable[..., Rig]]:
    """start(family, model options, engine options) -> Rig; all engines are closed at the end."""
    from speculator_service.vllm_backend.engine import VllmSpeculator

    # 65,536 tokens: a larger KV cache takes longer to fill with zeros than the engine to start.
    on_cpu = {"enforce_eager": True, "num_gpu_blocks_override": 2048} if device == "cpu" else {}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as engines:
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # functions as arguments of collective_rpc

        def start(family, model=None, **options):
            path = Path(models.build_model(folders.mktemp(family), family, **(model or {})))
            set_eos(path, ends_early(path))
            engine = VllmSpeculator(str(path), **{"dtype": "float32", **on_cpu, **options})
            engines.callback(engine.close)
            return Rig(engine, models.load_model(path))

        yield start


@pytest.fixture(scope="module")
def start(device, tmp_path_factory):
    with starting(device, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def llama_rig(device, tmp_path_factory):
    """Shared by test_heads, test_question_rows, test_scores and, after them, test_sessions, which ends the engine."""
    with starting(device, tmp_path_factory) as start:
        model = {"head_dim": 64, "layers": 5, "max_position": 2048}
        yield start("llama", model, max_num_batched_tokens=256, max_num_seqs=16, seed=1)


EARLY_PROMPT = models.random_prompt(90, seed=77)


def ends_early(path: Path) -> list[int]:
    """Two EOS ids. The second one ends the answer to EARLY_PROMPT after a few tokens."""
    tokens = scoring_oracle.score(
        models.load_model(path), EARLY_PROMPT, SelectionOptions(look_ahead=8)
    ).look_ahead_tokens
    # The first new token from the third on, so that there are valid steps before it and masked steps after it.
    return [5, next(token for i, token in enumerate(tokens) if i >= 2 and token not in tokens[:i])]


def tokens_a_step(most: int):
    """For `Rig.call`: set the limit of tokens per request and engine step; the default is 17.

    With a low limit, requests still run when others need their blocks. Only for a single rank, which runs in the
    scheduler's process.
    """

    def limit(worker):
        from speculator_service.vllm_backend import multi_step

        multi_step.MAX_STEPS = most - 1

    return limit


def patience(seconds: float):
    """For `Rig.call`: set how long the rounds of a gang wait for each other. Only for a single rank."""

    def wait(worker):
        from speculator_service.vllm_backend import scheduler

        scheduler.GANG_WAIT_S = seconds

    return wait


def kept_of(token_ids, seed=0) -> KeptPrompt:
    """Keep about a third of the tokens in runs of 16, including the last tokens."""
    ids = np.array(token_ids, np.int32)
    runs = np.random.default_rng(seed).random(ids.size // 16 + 1) < 0.3
    kept = np.flatnonzero(np.repeat(runs, 16)[: ids.size] | (np.arange(ids.size) >= ids.size - 5)).astype(np.int32)
    return KeptPrompt(ids[kept], kept, ids.size)


def set_eos(path: Path, eos_token_ids: list[int]) -> None:
    file = path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": eos_token_ids}))
