"""Verified drafts: the answer is that of plain decoding, whatever the drafter does."""

import asyncio
import math
import tempfile
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.proof.checks import Checks, Settings
from benchmarks.gpu.proof.engines import engine_options, stopped, tell_what_runs
from benchmarks.gpu.proof.models import kept_prompt, make_checkpoint
from benchmarks.gpu.proof.target import TOKENS, answer
from benchmarks.gpu.vllm_pair import Forced
from kv_transfer.draft_channel.server import DraftServer
from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow
from kv_transfer.messages import KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.sampling_oracle import chi_square_p, continuations

DRAFTS = 4
HOST = "127.0.0.1"
REMOTE = DecodeOptions(max_draft_tokens=DRAFTS, adaptive=False, draft_ahead="off")
VOCABULARY = 12
TOP = 6
SAMPLED = KeptPrompt(np.array([3, 7, 9, 10, 4, 8], np.int32), np.array([0, 2, 3, 9, 14, 15], np.int32), 20)

Drafting = Callable[[DraftRow, list[int]], Draft]
"""Makes the drafts for a row from the answer so far, which includes the row's tokens."""


@asynccontextmanager
async def drafter(draft: Drafting) -> AsyncIterator[str]:
    """The address of a draft server without a model, which has every session."""
    answers: dict[str, list[int]] = {}

    async def handle(request: DraftRequest) -> DraftReply:
        drafts = []
        for row in request.rows:
            known = answers.setdefault(row.session, [])
            known[row.position :] = row.tokens.tolist()
            if row.max_drafts:
                drafts.append(draft(row, known))
        return DraftReply(request.sequence, drafts)

    server = DraftServer(handle, HOST)
    port = await server.start()
    try:
        yield f"{HOST}:{port}"
    finally:
        await server.stop()


def _start(path: str, settings: Settings, drafts: int) -> Any:
    from target_service.vllm_backend.engine import VllmTarget

    decode = {"method": "remote", "max_draft_tokens": drafts}
    options = engine_options(settings, dtype="float32")
    return VllmTarget(path, decode=decode, draft_channel={"deadline_s": 10.0}, **options)


async def greedy(settings: Settings, checks: Checks) -> None:
    """Greedy answers with a drafter that knows them and with one that lies; then a biased answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder), layers=2, head_size=64)
        oracle, prompt = GenerationOracle(path), kept_prompt(2000, 600, 1)
        with stopped(_start(path, settings, DRAFTS)) as engine:
            await tell_what_runs(engine, settings, checks, "remote", runner=None, backend=None)
            plain = (await answer(engine, "plain", prompt)).tokens
            matches = TOKENS - oracle.wrong_tokens(prompt, plain)
            checks.judge("plain", matches == TOKENS, matches, f"of {TOKENS} are the oracle's, all in float32")
            for name, acceptance in (("knowing drafter", 1.0), ("control: lying drafter", 0.0)):
                with checks.part(name):
                    await _drafted(engine, prompt, plain, name, acceptance, checks)
            with checks.part("logit bias"):
                await _biased(engine, prompt, plain, checks)


async def _drafted(
    engine: Any, prompt: KeptPrompt, plain: list[int], name: str, acceptance: float, checks: Checks
) -> None:
    """The answer with drafts, of which all or none are right: the same tokens, and the share that was accepted."""
    forced = Forced(plain, acceptance, np.random.default_rng(0), instant=True)
    before = await engine.decode_stats()
    async with drafter(lambda row, _: forced.drafts(row)) as address:
        found = await answer(engine, name, prompt, REMOTE, SessionHandle(address, "drafted"))
    after = await engine.decode_stats()
    drafts, accepted = (after[key] - before.get(key, 0) for key in ("drafts", "accepted"))
    same = int(np.equal(found.tokens, plain).sum())
    checks.judge(
        f"{name}: tokens", found.tokens == plain, same, f"of {TOKENS} are those of plain decoding, all must be"
    )
    share = accepted / drafts if drafts else math.nan
    says = f"of {drafts} drafts were accepted, about {acceptance:g} must be"
    checks.judge(f"{name}: accepted", abs(share - acceptance) <= 0.02, share, says)


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
    requests = 500 if settings.toy else 1400
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder), layers=1, head_size=64, vocabulary=VOCABULARY, max_position=64)
        oracle = GenerationOracle(path)
        own = np.stack([oracle.logprobs(SAMPLED, [a, 0])[1].exp().double().numpy() for a in range(VOCABULARY)])
        other = np.random.default_rng(3).dirichlet(np.ones(VOCABULARY), VOCABULARY)
        table = (own + other) / 2
        expected = continuations(oracle, SAMPLED, VOCABULARY, temperature=1.0, top_p=1.0)
        with stopped(_start(path, settings, 3)) as engine:
            await tell_what_runs(engine, settings, checks, "remote", runner=None, backend=None)
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
    options = DecodeOptions(max_draft_tokens=3, adaptive=False, q_top=TOP, draft_ahead="off")

    async def one(seed: int, address: str) -> None:
        async with turns:
            session = SessionHandle(address, f"s{seed}")
            # Five tokens, so that drafts are possible for all of the first three.
            more = {"temperature": 1.0, "seed": seed, "max_tokens": 5, "logprobs": None}
            tokens = (await answer(engine, f"s{seed}", SAMPLED, options, session, **more)).tokens
            counts[tokens[0], tokens[1], tokens[2]] += 1

    async with drafter(lambda row, known: _draw(row, known, table, told)) as address:
        await asyncio.gather(*(one(seed, address) for seed in range(requests)))
    return counts


def _draw(row: DraftRow, known: list[int], table: np.ndarray, told: np.ndarray) -> Draft:
    """Drafts sampled from the top of `table`, with the q of `told`."""
    rng = np.random.default_rng([zlib.crc32(row.session.encode()), len(known)])
    last, tokens, ids, probs = known[-1], [], [], []
    for _ in range(row.max_drafts):
        top = np.argsort(table[last])[::-1][: row.top_m]
        q, reported = (rows[last, top] / rows[last, top].sum() for rows in (table, told))
        last = int(rng.choice(top, p=q))
        tokens.append(last)
        ids.append(top)
        probs.append(reported)
    q_ids, q_probs = np.concatenate(ids).astype(np.int32), np.concatenate(probs).astype(np.float32)
    return Draft(row.session, len(known), np.array(tokens, np.int32), q_ids, q_probs)
