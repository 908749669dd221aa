"""The proposers of both model runners, without an engine: what they ask for, what they return, and what they count."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kv_transfer.drafts import Drafted, DraftRow
from kv_transfer.messages import GenerateRequest, KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from target_service.drafting.session import DRAFTING, DraftSettings, TargetSession
from target_service.vllm_backend.speculation import proposer, remote_speculator

PROMPT, MOST, VOCABULARY = [3, 4, 5], 3, 16
GROUP = SimpleNamespace(rank_in_group=0, world_size=1)


def config() -> SimpleNamespace:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=MOST, method="custom_class"),
        model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: VOCABULARY),
        scheduler_config=SimpleNamespace(async_scheduling=True, max_num_seqs=4),
        additional_config=None,
    )


def new_request(id: str, *, session: str | None, max_tokens: int = 20) -> SimpleNamespace:
    handle = SessionHandle("a:1", session) if session else None
    look_ahead = np.array([6, 7, 8, 9] if session else [], np.int32)
    prompt = KeptPrompt(np.array(PROMPT, np.int32), np.arange(3, dtype=np.int32), 3, look_ahead, handle)
    settings = DraftSettings.of(GenerateRequest(id, prompt, decode=DecodeOptions(adaptive=False)))
    params = SimpleNamespace(
        extra_args={DRAFTING: settings}, temperature=0.0, structured_outputs=None, eos_token_id=2, stop_token_ids=[],
        min_tokens=0, max_tokens=max_tokens,
    )  # fmt: skip
    return SimpleNamespace(req_id=id, sampling_params=params, prompt_token_ids=PROMPT, prefill_token_ids=PROMPT)


def step(tokens: dict[str, int], *, new: Iterable[Any] = (), drafts: dict[str, list[int]] | None = None) -> Any:
    return SimpleNamespace(
        finished_req_ids=set(), scheduled_new_reqs=list(new), num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()), scheduled_spec_decode_tokens=drafts or {},
    )  # fmt: skip


class Drafters:
    """In place of `DraftExchange.ask`: drafts the tokens after the last one of the answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []

    def __call__(self, rows: Iterable[tuple[TargetSession, DraftRow]]) -> dict[TargetSession, Drafted]:
        found = {}
        for session, row in rows:
            self.asked.append((row.tokens.tolist(), row.max_drafts))
            last = int(row.tokens[-1])
            found[session] = Drafted(np.arange(last + 1, last + 1 + row.max_drafts, dtype=np.int32))
        return found


def test_the_v1_proposer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer, "get_tp_group", lambda: GROUP)
    ids = ["drafted", "plain"]
    batch = SimpleNamespace(req_ids=ids, num_prompt_tokens=[3, 3], all_greedy=True)
    ours, drafters = proposer.RemoteProposer(config()), Drafters()
    ours.attach(SimpleNamespace(input_batch=batch))
    ours.drafts._exchange.ask = drafters  # type: ignore[method-assign]
    new = [new_request("drafted", session="s"), new_request("plain", session=None)]
    tokens = np.zeros((2, 16), np.int32)
    tokens[0, :4], tokens[1, :4] = [*PROMPT, 6], [*PROMPT, 6]

    ours.begin_step(step({"drafted": 3, "plain": 3}, new=new))
    assert ours.propose([[6], [6]], [4, 4], tokens) == [[7, 8, 9], []]
    ours.begin_step(step({"drafted": 4, "plain": 1}, drafts={"drafted": [7, 8, 9]}))
    tokens[0, 4:7] = [7, 8, 10]
    assert ours.propose([[7, 8, 10], []], [7, 4], tokens) == [[11, 12, 13], []]
    # The answer ends with EOS, so no drafts are asked for.
    ours.begin_step(step({"drafted": 4, "plain": 1}, drafts={"drafted": [11, 12, 13], "plain": [-1, -1, -1]}))
    tokens[0, 7] = 2
    assert ours.propose([[2], [5]], [8, 5], tokens) == [[], []]
    # The first drafts were the look-ahead tokens.
    assert drafters.asked == [([6, 7, 8, 10], 3)]
    stats = ours.drafts.stats()
    assert (stats["rounds"], stats["drafts"], stats["accepted"]) == (2, 6, 2)
    assert stats["accepted_per_position"] == [1, 1, 0]
    ours.drafts.shutdown()


def v2_batch(ids: list[str], places: dict[str, int]) -> SimpleNamespace:
    counts = np.array([places.get(id, 0) for id in ids], np.int32)
    rows = int(counts.sum()) + len(ids)
    return SimpleNamespace(
        req_ids=ids, num_reqs=len(ids), idx_mapping_np=np.arange(len(ids)),
        num_draft_tokens_per_req=counts if places else None, cu_num_logits_np=np.cumsum([0, *(counts + 1)]),
        logits_indices=torch.arange(rows), input_ids=torch.zeros(rows, dtype=torch.int32),
        num_computed_prefill_tokens_np=np.full(len(ids), 3), num_scheduled_tokens=counts + 1,
        prefill_len_np=np.full(len(ids), 3),
    )  # fmt: skip


def test_the_v2_speculator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_speculator, "get_tp_group", lambda: GROUP)
    ours, drafters = remote_speculator.RemoteSpeculator(config(), torch.device("cpu")), Drafters()
    ours.drafts._exchange.ask = drafters  # type: ignore[method-assign]
    sampled: list[tuple[list[list[int]], list[int]]] = [
        ([[6], [6]], [1, 1]),
        ([[7, 8, 10, 0], [9, 0, 0, 0]], [3, 1]),
        ([[2, 0], [9, 0]], [1, 1]),
    ]

    def sample(*_: Any) -> Any:
        tokens, counts = sampled.pop(0)
        return SimpleNamespace(sampled_token_ids=torch.tensor(tokens)), torch.tensor(counts)

    runner = SimpleNamespace(sample=sample)
    ours.attach(runner)
    ids, nothing = ["drafted", "plain"], [None] * 10
    new = [new_request("drafted", session="s"), new_request("plain", session=None)]

    def run(scheduled: Any, places: dict[str, int]) -> tuple[list[list[int]], Any]:
        ours.begin_step(scheduled)
        batch = v2_batch(ids, places)
        runner.sample(None, batch, None)
        drafts = ours.propose(batch, *nothing)
        return drafts.tolist(), ours.report

    drafts, report = run(step({"drafted": 3, "plain": 3}, new=new), {})
    assert drafts == [[7, 8, 9], [0, 0, 0]]
    assert (report.verified, report.wanted) == ({}, {"drafted": 3})
    assert ours.take_draft_token_ids().draft_token_ids == [[7, 8, 9], []]
    placeholders = {"drafted": [-1] * 3}
    drafts, report = run(step({"drafted": 4, "plain": 1}, drafts=placeholders), {"drafted": 3})
    assert drafts == [[11, 12, 13], [0, 0, 0]]
    assert report.verified == {"drafted": 3}
    # One place: only the first draft is verified. The answer ends with EOS, so no drafts are asked for.
    drafts, report = run(step({"drafted": 2, "plain": 1}, drafts={"drafted": [-1]}), {"drafted": 1})
    assert drafts == [[0, 0, 0], [0, 0, 0]]
    assert report.verified == {"drafted": 1}
    # The first drafts were the look-ahead tokens.
    assert drafters.asked == [([6, 7, 8, 10], 3)]
    stats = ours.drafts.stats()
    assert (stats["rounds"], stats["drafts"], stats["accepted"]) == (2, 4, 2)
    ours.drafts.shutdown()


def test_a_dummy_run_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_speculator, "get_tp_group", lambda: GROUP)
    ours = remote_speculator.RemoteSpeculator(config(), torch.device("cpu"))
    ours.attach(SimpleNamespace(sample=None))
    drafts = ours.propose(v2_batch(["_dummy_req_0"], {}), *[None] * 10, dummy_run=True)
    assert drafts.tolist() == [[0, 0, 0]]
    ours.drafts.shutdown()
