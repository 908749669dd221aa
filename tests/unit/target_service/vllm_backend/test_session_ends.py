"""The end of a drafting session reaches its drafter while the target goes on with other answers."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from kv_transfer.drafts import Drafted, DraftReply, DraftRequest
from kv_transfer.messages import GenerateRequest, KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from target_service.drafting.requests import Verified
from target_service.drafting.session import DRAFTING, DraftSettings
from target_service.vllm_backend.speculation import remote_drafts
from target_service.vllm_backend.speculation.remote_drafts import RemoteDrafts


class Drafter:
    """Drafts a token for each row. closed: the ends that it was told. rows: the sessions of all rows."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.closed: list[str] = []
        self.rows: list[str] = []
        self.messages = 0

    def exchange(self, request: DraftRequest) -> DraftReply:
        self.closed += request.closed
        self.rows += [row.session for row in request.rows]
        self.messages += 1
        return DraftReply({row.session: Drafted(np.array([6], np.int32)) for row in request.rows})

    def close(self) -> None:
        pass


@pytest.fixture
def drafter(monkeypatch: pytest.MonkeyPatch) -> Drafter:
    drafter = Drafter()
    monkeypatch.setattr(remote_drafts, "connecting", lambda channel: lambda address: drafter)
    return drafter


@pytest.fixture
def drafts(drafter: Drafter) -> Iterator[RemoteDrafts]:
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        model_config=SimpleNamespace(max_model_len=100, get_vocab_size=lambda: 50),
        additional_config={},
    )
    drafts = RemoteDrafts(config)
    yield drafts
    drafts.shutdown()


def new(name: str, session: str | None) -> SimpleNamespace:
    handle = SessionHandle("a:1", session) if session else None
    prompt = KeptPrompt(np.array([1, 2], np.int32), np.array([0, 1], np.int32), 2, session=handle)
    extra = {DRAFTING: DraftSettings.of(GenerateRequest(name, prompt, decode=DecodeOptions(adaptive=False)))}
    params = SimpleNamespace(
        extra_args=extra, temperature=0.0, structured_outputs=None, max_tokens=50, min_tokens=0, eos_token_id=None
    )
    params.stop_token_ids = []
    return SimpleNamespace(req_id=name, sampling_params=params, prompt_token_ids=[1, 2])


def step(drafts: RemoteDrafts, names: list[str], begun: tuple = (), finished: tuple = ()) -> None:
    scheduled = SimpleNamespace(
        finished_req_ids=set(finished),
        scheduled_new_reqs=list(begun),
        total_num_scheduled_tokens=len(names),
        num_scheduled_tokens=dict.fromkeys(names, 1),
        scheduled_spec_decode_tokens={},
    )
    drafts.begin_step(scheduled)
    drafts.propose([Verified(name, 0, [5], np.array([5, 5, 5], np.int32)) for name in names], len(names))


@pytest.mark.parametrize("other", [None, "t"])
def test_an_end_is_told_although_only_answers_without_drafts_go_on(
    drafts: RemoteDrafts, drafter: Drafter, other: str | None
) -> None:
    """With a second session, the next row for it tells the end, in the same message."""
    step(drafts, ["a", "b"], begun=(new("a", "s"), new("b", other)))
    for _ in range(10):
        step(drafts, ["a", "b"])
    assert not drafter.closed
    step(drafts, ["b"], finished=("a",))
    assert drafter.closed == ["s"]
    assert drafter.rows.count("t") == (12 if other else 0)
    assert drafter.messages == 12
