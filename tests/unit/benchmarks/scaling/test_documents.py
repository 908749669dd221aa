"""Questions about shared documents in the scaling benchmark: what is sent, and what is counted."""

import time
from contextlib import nullcontext

import aiohttp
import pytest

from benchmarks.harness.chat_client import Timed
from benchmarks.scaling import documents as scale_documents
from benchmarks.scaling import scale
from benchmarks.scaling.deployment import deployment
from benchmarks.scaling.documents import QUESTION_TOKENS, Questions, described, send_questions, shared
from benchmarks.scaling.watch import Counts
from cluster.serve.app import build_app
from skim_common.errors import SkimError

QUESTIONS = Questions("bench", 3, 400, range(10, 900))


def timed(mode: str = "speculative", reused: int = 0, cached: int = 0) -> Timed:
    headers = {"x-skim-mode": mode, "x-skim-reason": "sooner;dense=9;speculative=8", "x-skim-kept-tokens": "100"}
    usage = {"prompt_tokens_details": {"cached_tokens": cached}}
    return Timed(500.0, 500.0, 1, usage=usage, headers={**headers, "x-skim-reused-tokens": str(reused)})


def test_questions_about_one_document_share_it() -> None:
    one, two, other = (QUESTIONS.body(*of, seed=7)["prompt"] for of in ((0, 1), (0, 2), (1, 1)))
    assert len(one) == len(other) == 400
    assert one[:-QUESTION_TOKENS] == two[:-QUESTION_TOKENS] != other[:-QUESTION_TOKENS]
    assert one[-QUESTION_TOKENS:] == other[-QUESTION_TOKENS:] != two[-QUESTION_TOKENS:]
    assert QUESTIONS.body(0, 1, seed=8)["prompt"][:100] != one[:100]


def test_how_requests_ran_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    async def ask(session: aiohttp.ClientSession, url: str, body: dict) -> Timed:
        sent.append((url, tuple(body["prompt"][:-QUESTION_TOKENS])))
        if len(sent) == 5:
            raise SkimError("503")
        return timed("dense", cached=100) if len(sent) == 6 else timed(reused=50 * (len(sent) % 2), cached=50)

    monkeypatch.setattr(scale_documents, "ask", ask)
    rows = send_questions(QUESTIONS, "http://there", 41, rate=500.0, seed=1, zero=time.perf_counter())
    assert {url for url, _ in sent} == {"http://there/v1/completions"}
    assert len({document for _, document in sent}) == QUESTIONS.count
    assert sum(row["failed"] for row in rows) == 1
    told = shared(rows)
    assert told["reasons"] == {"speculative, sooner": 39, "dense, sooner": 1}
    # Every second request extends a selection: the odd ones, of which the fifth failed.
    assert told["extended_share"] == 20 / 39
    assert told["cached_share"] == pytest.approx((39 * 0.5 + 1) / 40)
    assert "39 speculative, sooner, 1 dense, sooner" in described(told, 3, affinity=False)
    assert "Affinity is off" in described(told, 3, affinity=False)


def test_shared_documents_change_the_engines_and_the_router() -> None:
    options = {}
    for documents in (0, 8):
        settings = scale.ScaleSettings("/t", "/s", documents=documents, affinity=documents > 0)
        config = deployment(settings)
        build_app(config)
        options[documents] = config
    assert (options[0].router.speculative_prefill, options[8].router.speculative_prefill) == ("always", "auto")
    assert (options[0].router.affinity, options[8].router.affinity) == (False, True)
    assert options[0].speculator.engine_options == {"latency_ms": 2000.0}
    target = options[8].target.engine_options
    kept = 0.2 * 1536
    assert target["prefill_ms_per_token"] * kept == pytest.approx(1000.0)
    assert target["cache_tokens"] == 16 * 1536


def test_a_run_with_documents_tells_how_they_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def send_some(questions: Questions, url: str, requests: int, *, rate: float, seed: int, zero: float) -> list:
        sent.append((questions.count, requests, rate))
        row = {"s": time.perf_counter() - zero, "ttft_s": 0.5, "failed": False, "mode": "speculative"}
        return [{**row, "reason": "sooner", "reused": 0, "cached_share": 0.25}]

    samples = [
        {"s": 5.0 * i, **{f"{p}{end}": 1 for p in ("speculator", "target") for end in ("", "_asked")}} for i in (1, 2)
    ]
    monkeypatch.setattr(scale, "deployed", lambda config, progress: nullcontext("http://there"))
    monkeypatch.setattr(scale, "send", lambda *args, **kwargs: None)
    monkeypatch.setattr(scale, "send_questions", send_some)
    monkeypatch.setattr(scale, "watched", lambda zero, url: nullcontext((samples, Counts())))
    monkeypatch.setattr(scale, "SETTLE_S", 0.0)
    told = scale.run(scale.ScaleSettings("/models/t", "/models/s", rate=2.0, step_s=30.0, documents=8))
    assert sent == [(8, 5, 0.4), (8, 60, 2.0), (8, 24, 0.4)]
    assert told["shared"]["cached_share"] == 0.25
    assert "ask about 8 documents" in scale.describe(told)
