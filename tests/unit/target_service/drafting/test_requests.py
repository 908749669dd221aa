"""The source of the next drafts: the look-ahead tokens first, then the session, and never more than requested."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import GenerateRequest, KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from target_service.drafting.counts import Line
from target_service.drafting.requests import AnswerEnd, DraftedRequest, DraftedRequests, Verified
from target_service.drafting.session import DRAFTING, Q_TOP, DraftSettings

PROMPT = KeptPrompt.dense([1, 2, 3])


def ids(*values: int) -> Int32Array:
    return np.array(values, np.int32)


NONE = ids()


def settings(**changed: object) -> DraftSettings:
    fields = {"max_drafts": 4, "adaptive": False, "session": ["a:1", "s"]}  # a list, as vLLM sends it
    return DraftSettings(**{**fields, **changed})


def after(name: str, answer: Int32Array) -> Verified:
    return Verified(name, 0, [], answer)


def begun(
    requests: DraftedRequests,
    name: str = "r",
    look_ahead: Int32Array | None = None,
    length: int = 99,
    **changed: object,
) -> DraftedRequest:
    """length: of the answer."""
    if look_ahead is not None:
        changed["look_ahead"] = look_ahead.tobytes()
    requests.begin(name, settings(**changed), AnswerEnd(length), 0.0, 0)
    request = requests.get(name)
    assert request is not None
    return request


def test_settings_travel() -> None:
    prompt = KeptPrompt(ids(1, 2), ids(0, 4), 9, ids(5, 6), SessionHandle("a:1", "s"))
    decode = DecodeOptions(max_draft_tokens=3, adaptive=False)
    sent = msgspec.msgpack.encode({DRAFTING: DraftSettings.of(GenerateRequest("r", prompt, decode=decode))})
    read = DraftSettings.read(SimpleNamespace(extra_args=msgspec.msgpack.decode(sent)))
    assert read is not None
    assert read[:3] == (3, False, Q_TOP)
    assert read.session == ["a:1", "s"]
    assert np.frombuffer(read.look_ahead, np.int32).tolist() == [5, 6]
    assert (DraftSettings.read(None), DraftSettings.read(SimpleNamespace(extra_args=None))) == (None, None)


def test_no_drafts_for_method_none() -> None:
    none = GenerateRequest("r", PROMPT, decode=DecodeOptions(method="none"))
    assert DraftSettings.of(none).max_drafts == 0
    assert DraftSettings.of(GenerateRequest("r", PROMPT)).max_drafts > 0


def planned(requests: DraftedRequests, name: str, answer: Int32Array) -> tuple[list[int], int]:
    """The look-ahead tokens that become drafts, and the number of drafts that the drafter is asked for."""
    free, asked = requests.plan([after(name, answer)], 1)
    return free[name].tokens.tolist() if name in free else [], asked[name][1].max_drafts if name in asked else 0


def test_look_ahead_first_then_the_session() -> None:
    requests = DraftedRequests(4)
    request = begun(requests, look_ahead=ids(5, 6, 7, 8, 9, 10))
    assert planned(requests, "r", ids(5)) == ([6, 7, 8, 9], 0)
    assert planned(requests, "r", ids(5, 6, 7, 8, 9)) == ([10], 0)
    _, asked = requests.plan([after("r", ids(5, 6, 7, 8, 9, 10))], 1)
    session, row = asked["r"]
    assert (session, row.max_drafts) == (request.session, 4)
    assert requests.stats()["look_ahead"] == 5


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_free_drafts_follow_the_answer(look_ahead: list[int], answer: list[int]) -> None:
    request = begun(DraftedRequests(4), look_ahead=ids(*look_ahead))
    matches = look_ahead[: len(answer)] == answer
    assert request.free_drafts(ids(*answer)).tolist() == (look_ahead[len(answer) :] if matches else [])


def test_the_first_token_waits_for_no_drafter() -> None:
    """It leaves the engine after the drafts for the next step are planned."""
    requests = DraftedRequests(4)
    begun(requests)
    assert planned(requests, "r", ids(5)) == ([], 0)
    assert planned(requests, "r", ids(5, 6)) == ([], 4)


def test_once_left_look_ahead_does_not_come_back() -> None:
    request = begun(DraftedRequests(4), look_ahead=ids(5, 6, 7, 8))
    assert request.free_drafts(ids(4)).size == 0
    assert request.free_drafts(ids(5)).size == 0


@pytest.mark.parametrize("adaptive", [True, False])
def test_never_more_than_room_or_the_request_or_the_engine(adaptive: bool) -> None:
    requests = DraftedRequests(4)
    requests.counts.stepped(0, 1, 1.0)  # with the cost of a step but not of drafts, all drafts are tried
    for look_ahead in (ids(5, 6, 7, 8, 9, 10), ids()):
        for name, most, room, drafts in [
            ("a", 4, 2, 2),
            ("b", 4, 0, 0),
            ("c", 1, 9, 1),
            ("d", 16, 9, 4),
            ("e", 0, 9, 0),
        ]:
            begun(requests, name, look_ahead, 3 + room, max_drafts=most, adaptive=adaptive)
            free, asked = planned(requests, name, ids(5, 6))
            assert (len(free), asked) == ((drafts, 0) if look_ahead.size else (0, drafts))
            requests.finish(name)


def test_adaptive_requests_of_a_batch_are_planned_together() -> None:
    requests = DraftedRequests(4)
    for name in ("fixed", "good", "bad"):
        begun(requests, name, adaptive=name != "fixed", session=("a:1", name))
    for _ in range(50):
        requests.get("good").acceptance.observe(4, 4)
        requests.get("bad").acceptance.observe(4, 0)
    requests.counts.step, requests.counts.exchange = Line(1.0, 0.4, 50, 50), Line(0.01, 0.0, 50, 50)
    _, asked = requests.plan([after(name, ids(5, 6)) for name in ("bad", "fixed", "good", "unknown")], 4)
    assert {name: row.max_drafts for name, (_, row) in asked.items()} == {"fixed": 4, "good": 4}
    assert requests.stats()["chosen"] == {0: 1, 1: 0, 2: 0, 3: 0, 4: 2}


def test_answers_of_one_request_share_a_session_by_taking_turns() -> None:
    requests = DraftedRequests(4)
    first, second = begun(requests, "0_r"), begun(requests, "1_r")
    assert first.session is not None
    assert second.session is None
    assert planned(requests, "1_r", ids(5)) == ([], 0)
    assert requests.stats()["no_session"] == 1
    assert requests.finish("1_r") is None
    assert requests.finish("0_r") is first.session
    assert requests.finish("0_r") is None
    assert begun(requests, "again").session is not None


def test_acceptance_is_counted_by_position_and_handed_on() -> None:
    requests = DraftedRequests(4)
    begun(requests, "r")
    planned(requests, "r", ids(5, 6))
    for _ in range(200):
        requests.observe("r", 4, 1)
        requests.observe("gone", 2, 0)
    stats = requests.stats()
    assert (stats["rounds"], stats["drafts"], stats["accepted"]) == (400, 1200, 200)
    assert stats["drafts_per_position"] == [400, 400, 200, 200]
    assert stats["accepted_per_position"] == [200, 0, 0, 0]
    assert stats["acceptance"] > 0.9
    new = begun(requests, "new", session=None).acceptance.rates.tolist()
    assert new[:2] == [stats["acceptance"], pytest.approx(0, abs=0.2)]
    requests.observe("r", 1, 0)
    assert requests.get("r").acceptance.rates[0] != requests.get("new").acceptance.rates[0] < new[0]


def test_look_ahead_tokens_say_nothing_about_the_drafter() -> None:
    requests = DraftedRequests(4)
    request = begun(requests, look_ahead=ids(5, 6, 7))
    before = request.acceptance.rates.tolist()
    assert planned(requests, "r", ids(5)) == ([6, 7], 0)
    requests.observe("r", 2, 2)
    assert request.acceptance.rates.tolist() == before
    assert planned(requests, "r", ids(5, 6, 7)) == ([], 4)
    requests.observe("r", 4, 0)
    assert request.acceptance.rates[0] < before[0]


def test_with_async_scheduling_a_count_is_used_a_step_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler reserves the places for a step before the plan of that step is made."""
    requests = DraftedRequests(4, ahead=True)
    request = begun(requests, adaptive=True)
    chosen = iter([2, 3, 0, 1, 1])
    monkeypatch.setattr(requests.counts, "choose", lambda *_: np.array([next(chosen)]))
    assert request.wanted() == 4
    asked = []
    for size in range(2, 7):
        _, questions = requests.plan([after("r", ids(*range(size)))], 1)
        asked.append((questions["r"][1].max_drafts if questions else 0, request.wanted()))
    assert asked == [(2, 2), (2, 3), (3, 0), (0, 1), (1, 1)]
    assert requests.plan([], 0) == ({}, {})


def test_places_are_wanted_for_look_ahead_tokens_and_for_a_session() -> None:
    requests = DraftedRequests(4, ahead=True)
    assert begun(requests, "free", session=None, look_ahead=ids(5, 6), max_drafts=3).wanted() == 3
    assert begun(requests, "none", session=None).wanted() == 0


def test_a_shorter_answer_is_told_from_where_it_is_another() -> None:
    requests = DraftedRequests(4)
    request = begun(requests)
    assert request.session is not None
    request.session.acknowledge(request.session.ask(ids(5, 6, 7), 1, 0.0, 0), drafted=True)
    requests.roll_back("r", 1)
    requests.roll_back("gone", 1)
    row = request.session.ask(ids(5, 8), 1, 0.0, 0)
    assert (row.position, row.tokens.tolist()) == (1, [8])


def test_a_session_that_rests_is_not_asked_and_wants_no_places() -> None:
    requests = DraftedRequests(4)
    request = begun(requests)
    assert request.session is not None
    batch = [after("r", ids(5, 6))]
    _, asked = requests.plan(batch, 1)
    request.session.acknowledge(request.session.ask(ids(5, 6), 4, 0.0, 0), drafted=False)
    assert asked
    assert requests.plan(batch, 1) == ({}, {})
    assert (request.wanted(), requests.stats()["no_draft"]) == (0, 1)
    assert requests.plan(batch, 1)[1]


def test_requests_that_may_get_remote_drafts() -> None:
    def may_draft(prompt: KeptPrompt, **decode: object) -> bool:
        return DraftSettings.of(GenerateRequest("r", prompt, decode=DecodeOptions(**decode))).may_draft

    drafted = KeptPrompt(ids(1), ids(0), 1, ids(), SessionHandle("a:1", "s"))
    assert may_draft(drafted)
    assert may_draft(KeptPrompt(ids(1), ids(0), 1, ids(5)))
    assert not may_draft(drafted, method="none")
    assert not may_draft(PROMPT)
