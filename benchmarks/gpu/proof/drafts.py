"""Verified drafts: the answer is that of plain decoding, whatever the drafter does."""

import asyncio
import math
import tempfile
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.proof.engines import (
    call,
    count_graphs,
    engine_options,
    full_graphs_ran,
    stopped,
    tell_what_runs,
)
from benchmarks.gpu.proof.models import kept_prompt, make_checkpoint, random_ids
from benchmarks.gpu.proof.target import NEARLY, TIE, TOKENS, V2, answer
from benchmarks.gpu.steps.checks import Checks, Settings
from benchmarks.gpu.vllm_pair import Forced
from kv_transfer.draft_channel import DraftServer
from kv_transfer.drafts import Drafted, DraftReply, DraftRequest, DraftRow
from kv_transfer.messages import KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.sampling_oracle import chi_square_p, continuations

DRAFTS = 4
HOST = "127.0.0.1"
REMOTE = DecodeOptions(max_draft_tokens=DRAFTS, adaptive=False)
ALLOWED = 12
"""Tokens that a sampled answer may have, so that all continuations can be enumerated. The model's vocabulary is larger,
because vLLM's warm-up reads higher token ids (vllm.v1.worker.gpu.warmup, `run_mixed_prefill_decode_warmup`)."""
TOP = 6
SAMPLED = KeptPrompt(np.array([3, 7, 9, 10, 4, 8], np.int32), np.array([0, 2, 3, 9, 14, 15], np.int32), 20)

Drafting = Callable[[DraftRow, list[int]], Drafted]
"""Makes the drafts for a row from the answer so far, which includes the row's tokens."""


@asynccontextmanager
async def drafter(draft: Drafting) -> AsyncIterator[str]:
    """The address of a draft server without a model, which has every session."""
    answers: dict[str, list[int]] = {}

    async def handle(request: DraftRequest) -> DraftReply:
        drafts = {}
        for row in request.rows:
            known = answers.setdefault(row.session, [])
            known[row.position :] = row.tokens.tolist()
            if row.max_drafts:
                drafts[row.session] = draft(row, known)
        return DraftReply(drafts)

    server = DraftServer(handle, HOST)
    port = await server.start()
    try:
        yield f"{HOST}:{port}"
    finally:
        await server.stop()


def start(path: str, settings: Settings, drafts: int, dtype: str = "float32", **others: Any) -> Any:
    """A target that verifies remote drafts. others: further options of the engine."""
    from target_service.vllm_backend.engine import VllmTarget

    decode = {"method": "remote", "max_draft_tokens": drafts}
    options = engine_options(settings, dtype=dtype, **others)
    return VllmTarget(path, decode=decode, draft_channel={"deadline_s": 10.0}, **options)


async def greedy(settings: Settings, checks: Checks) -> None:
    """Greedy answers with a drafter that knows them and with one that lies, in float32 and, as in serving, in bfloat16;
    then a biased answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder), layers=2, head_size=64)
        oracle, prompt = GenerationOracle(path), kept_prompt(2000, 600, 1)
        for dtype in ("bfloat16", "float32"):
            with checks.part(dtype), stopped(start(path, settings, DRAFTS, dtype)) as engine:
                backend = "FLASH_ATTN" if dtype == "bfloat16" else None
                await tell_what_runs(engine, settings, checks, dtype, runner=V2, backend=backend)
                if settings.device == "cuda":
                    await call(engine, count_graphs)
                drafted = DraftedAnswers(engine, oracle, prompt, dtype, checks)
                await drafted.plain()
                for name, acceptance in (("knowing drafter", 1.0), ("control: lying drafter", 0.0)):
                    await drafted.check(name, acceptance)
                if dtype == "bfloat16":
                    await full_graphs_ran(engine, settings, checks, dtype)
                else:
                    await _biased(engine, prompt, drafted.answer, checks)


@dataclass
class DraftedAnswers:
    """Answers of one engine with drafts, compared with its plain answer and the oracle's.

    In float32 the tokens are those of plain decoding. In bfloat16 a batch of another shape may choose the other one of
    two tokens that are almost equally probable, so they must be the oracle's (`TIE`).
    """

    engine: Any
    oracle: GenerationOracle
    prompt: KeptPrompt
    dtype: str
    checks: Checks
    answer: list[int] = field(default_factory=list)

    async def plain(self) -> None:
        self.answer = (await answer(self.engine, "plain", self.prompt)).tokens
        self._judge(f"{self.dtype}: plain", self.answer)

    async def check(self, name: str, acceptance: float) -> None:
        """The answer with drafts, of which all or none are right, beside a dense answer: tokens, and share accepted."""
        forced = Forced(self.answer, acceptance, np.random.default_rng(0), instant=True)
        before = await self.engine.decode_stats()
        beside = KeptPrompt.dense(random_ids(300, 5))
        async with drafter(lambda row, _: forced.drafts(row)) as address:
            found, dense = await asyncio.gather(
                answer(self.engine, name, self.prompt, REMOTE, SessionHandle(address, "drafted")),
                answer(self.engine, f"{name}-beside", beside),
            )
        after = await self.engine.decode_stats()
        drafts, accepted = (after[key] - before.get(key, 0) for key in ("drafts", "accepted"))
        self._judge(f"{self.dtype}, {name}: tokens", found.tokens)
        self._judge(f"{self.dtype}, {name}: beside", dense.tokens, beside)
        share = accepted / drafts if drafts else math.nan
        # A tie that falls the other way makes the known answer wrong from there on.
        few = self.dtype == "bfloat16" and acceptance == 1
        right = share >= 0.5 if few else abs(share - acceptance) <= 0.02
        says = f"of {drafts} drafts were accepted, " + ("half at least" if few else f"about {acceptance:g} must be")
        self.checks.judge(f"{self.dtype}, {name}: accepted", right, share, says)

    def _judge(self, name: str, tokens: list[int], prompt: KeptPrompt | None = None) -> None:
        least, tie = (TOKENS, 0.0) if self.dtype == "float32" else (NEARLY, TIE)
        matches = len(tokens) - self.oracle.wrong_tokens(prompt or self.prompt, tokens, tie)
        self.checks.judge(name, matches >= least, matches, f"of {TOKENS} are the oracle's, at least {least}")


async def _biased(engine: Any, prompt: KeptPrompt, plain: list[int], checks: Checks) -> None:
    """A bias of 100 leaves one token, in plain steps and in steps that verify drafts."""
    wanted = next(token for token in range(20, 700) if token not in plain)
    forced = Forced([wanted] * TOKENS, 0.5, np.random.default_rng(0), instant=True)
    bias = {wanted: 100.0}
    undrafted = await answer(engine, "bias", prompt, logit_bias=bias)
    async with drafter(lambda row, _: forced.drafts(row)) as address:
        drafted = await answer(
            engine, "bias-drafted", prompt, REMOTE, SessionHandle(address, "biased"), logit_bias=bias
        )
    for name, found in (("plain", undrafted), ("drafted", drafted)):
        count = found.tokens.count(wanted)
        checks.judge(f"logit bias, {name}", count == TOKENS, count, f"of {TOKENS} are the biased token, all must be")


async def sampled(settings: Settings, checks: Checks) -> None:
    """Sampled continuations with drafts that have a q are distributed as the target's own: a chi-square test."""
    requests = 900 if settings.toy else 1400
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder), layers=1, head_size=64)
        oracle = GenerationOracle(path)
        after = [oracle.logprobs(SAMPLED, [a, 0])[1, :ALLOWED] for a in range(ALLOWED)]
        own = np.stack([logprobs.double().softmax(-1).numpy() for logprobs in after])
        other = np.random.default_rng(3).dirichlet(np.ones(ALLOWED), ALLOWED)
        table = (own + other) / 2
        expected = continuations(oracle, SAMPLED, ALLOWED, temperature=1.0, top_p=1.0)
        with stopped(start(path, settings, 3)) as engine:
            await tell_what_runs(engine, settings, checks, "remote", runner=V2, backend=None)
            before = await engine.decode_stats()
            p = chi_square_p(await _sample(engine, table, table, requests), expected)
            after = await engine.decode_stats()
            accepted = (after["accepted"] - before.get("accepted", 0)) / (after["drafts"] - before.get("drafts", 0))
            checks.judge("accepted", 0.2 < accepted < 0.9, accepted, "of the drafts, which must be some and not all")
            checks.judge("distribution", p > 1e-3, p, f"p value of {3 * requests} sampled tokens, over 0.001")
            # Too small where the drafter draws often: these drafts are accepted too often.
            p = chi_square_p(await _sample(engine, table, 1 / table, requests), expected)
            checks.judge("control: wrong q", p < 1e-4, p, "p value with a drafter that reports a wrong q, under 0.0001")


async def _sample(engine: Any, table: np.ndarray, told: np.ndarray, requests: int) -> Counter[tuple[int, int, int]]:
    """Continuations of three tokens. table: the drafter's distribution after each token. told: what it reports."""
    counts: Counter[tuple[int, int, int]] = Counter()
    turns = asyncio.Semaphore(64)
    options = DecodeOptions(max_draft_tokens=3, adaptive=False)

    async def one(seed: int, address: str) -> None:
        async with turns:
            session = SessionHandle(address, f"s{seed}")
            # Five tokens, so that drafts are possible for all of the first three.
            more: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": 5, "logprobs": None}
            more["allowed_token_ids"] = list(range(ALLOWED))
            tokens = (await answer(engine, f"s{seed}", SAMPLED, options, session, **more)).tokens
            counts[tokens[0], tokens[1], tokens[2]] += 1

    async with drafter(lambda row, known: _draw(row, known, table, told)) as address:
        await asyncio.gather(*(one(seed, address) for seed in range(requests)))
    return counts


def _draw(row: DraftRow, known: list[int], table: np.ndarray, told: np.ndarray) -> Drafted:
    """Drafts sampled from the top of `table`, with the q of `told`."""
    rng = np.random.default_rng([zlib.crc32(row.session.encode()), len(known)])
    last, tokens, ids, probs = known[-1], [], [], []
    for _ in range(row.max_drafts):
        top = np.argsort(table[last])[::-1][: min(row.top_m, TOP)]
        q, reported = (rows[last, top] / rows[last, top].sum() for rows in (table, told))
        last = int(rng.choice(top, p=q))
        tokens.append(last)
        ids.append(top)
        probs.append(reported)
    q_ids, q_probs = np.concatenate(ids).astype(np.int32), np.concatenate(probs).astype(np.float32)
    return Drafted(np.array(tokens, np.int32), q_ids, q_probs)
