"""The source of the next drafts: the look-ahead tokens first, then the session, and never more than requested."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.messages import DecodeOptions, GenerateRequest, Int32Array, KeptPrompt, SessionHandle
from target_service.drafting.drafted_requests import DraftedRequest, DraftedRequests
from target_service.drafting.settings import DRAFTING, DraftSettings, draft_settings, encode_settings, max_drafts

PROMPT = KeptPrompt.dense([1, 2, 3])


def ids(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def settings(**changed: object) -> DraftSettings:
    fields = {"max_drafts": 4, "adaptive": False, "q_top": 8, "draft_ahead": "chain", "look_ahead": ids()}
    fields["session"] = SessionHandle("a:1", "s")
    return DraftSettings(**{**fields, **changed})


def begun(requests: DraftedRequests, name: str = "r", **changed: object) -> DraftedRequest:
    requests.begin(name, settings(**changed), lambda: PROMPT, 0.0, 0)
    request = requests.get(name)
    assert request is not None
    return request


def test_settings_travel() -> None:
    prompt = KeptPrompt(ids(1, 2), ids(0, 4), 9, ids(5, 6), SessionHandle("a:1", "s"))
    decode = DecodeOptions(max_draft_tokens=3, adaptive=False, q_top=7, draft_ahead="branches")
    sent = {DRAFTING: encode_settings(GenerateRequest("r", prompt, decode=decode))}
    read = draft_settings(sent)
    assert read is not None
    assert (read.max_drafts, read.adaptive, read.q_top, read.draft_ahead) == (3, False, 7, "branches")
    assert read.session is not None
    assert (read.session.address, read.session.id) == ("a:1", "s")
    assert read.look_ahead.tolist() == [5, 6]
    assert (max_drafts(sent), max_drafts(None), draft_settings({})) == (3, None, None)


def test_no_drafts_for_method_none() -> None:
    none = GenerateRequest("r", PROMPT, decode=DecodeOptions(method="none"))
    assert encode_settings(none)["max_drafts"] == 0
    assert encode_settings(GenerateRequest("r", PROMPT))["max_drafts"] > 0


def test_look_ahead_first_then_the_session() -> None:
    requests = DraftedRequests(4)
    request = begun(requests, look_ahead=ids(5, 6, 7, 8, 9, 10))
    free, proposal_request = requests.plan(request, ids(5), 99, 0.0)
    assert (free.tokens.tolist(), proposal_request) == ([6, 7, 8, 9], None)
    free, proposal_request = requests.plan(request, ids(5, 6, 7, 8, 9), 99, 0.0)
    assert (free.tokens.tolist(), proposal_request) == ([10], None)
    free, proposal_request = requests.plan(request, ids(5, 6, 7, 8, 9, 10), 99, 0.0)
    assert free is None
    assert (proposal_request.session, proposal_request.drafts) == (request.session, 4)
    assert requests.stats()["look_ahead"] == 5


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_free_drafts_follow_the_answer(look_ahead: list[int], answer: list[int]) -> None:
    request = begun(DraftedRequests(4), look_ahead=ids(*look_ahead))
    matches = look_ahead[: len(answer)] == answer
    assert request.free_drafts(ids(*answer)).tolist() == (look_ahead[len(answer) :] if matches else [])


def test_once_left_look_ahead_does_not_come_back() -> None:
    request = begun(DraftedRequests(4), look_ahead=ids(5, 6, 7, 8))
    assert request.free_drafts(ids(4)).size == 0
    assert request.free_drafts(ids(5)).size == 0


def test_never_more_than_room_or_the_request_or_the_engine() -> None:
    requests = DraftedRequests(4)
    ahead = ids(5, 6, 7, 8, 9, 10)
    assert requests.plan(begun(requests, "room", look_ahead=ahead), ids(5), 2, 0.0)[0].tokens.size == 2
    assert requests.plan(begun(requests, "full", look_ahead=ahead), ids(5), 0, 0.0) == (None, None)
    assert requests.plan(begun(requests, "own", max_drafts=1, look_ahead=ahead), ids(5), 9, 0.0)[0].tokens.size == 1
    assert requests.plan(begun(requests, "much", max_drafts=16, look_ahead=ahead), ids(5), 9, 0.0)[0].tokens.size == 4
    assert requests.plan(begun(requests, "none", max_drafts=0, look_ahead=ahead), ids(5), 9, 0.0) == (None, None)


def test_answers_of_one_request_share_a_session_by_taking_turns() -> None:
    requests = DraftedRequests(4)
    first, second = begun(requests, "0_r"), begun(requests, "1_r")
    assert first.session is not None
    assert second.session is None
    assert requests.plan(second, ids(5), 9, 0.0) == (None, None)
    assert requests.stats()["no_session"] == 1
    assert requests.finish("1_r") is None
    assert requests.finish("0_r") is first.session
    assert requests.finish("0_r") is None
    assert begun(requests, "again").session is not None


def test_acceptance_is_counted_by_position_and_handed_on() -> None:
    requests = DraftedRequests(4)
    begun(requests, "r")
    for _ in range(200):
        requests.observe("r", 4, 1)
        requests.observe("gone", 2, 0)
    stats = requests.stats()
    assert (stats["rounds"], stats["drafts"], stats["accepted"]) == (400, 1200, 200)
    assert stats["drafts_per_position"] == [400, 400, 200, 200]
    assert stats["accepted_per_position"] == [200, 0, 0, 0]
    assert stats["acceptance"] < 0.5
    assert begun(requests, "new", session=None).count.acceptance.rate == stats["acceptance"]
    assert requests.get("r").count.acceptance.rate != stats["acceptance"]
