"""The ends of sessions reach their drafters, each once, and again if a drafter did not get them."""

from benchmarks.mock_engines.session_ends import SessionEnds
from kv_transfer.messages import KeptPrompt, SessionHandle
from tests.unit.kv_transfer.channel_peer import until
from tests.unit.target_service.drafting.test_exchange import ScriptedClient


def prompt(address: str, id: str) -> KeptPrompt:
    ids = KeptPrompt.dense([1, 2])
    return KeptPrompt(ids.token_ids, ids.positions, ids.context_length, session=SessionHandle(address, id))


def test_each_end_is_reported_to_its_drafter() -> None:
    clients = {address: ScriptedClient() for address in ("a:1", "b:1")}
    ends = SessionEnds(clients.__getitem__)
    for address, id in (("a:1", "s"), ("b:1", "t"), ("a:1", "u")):
        ends.ended(prompt(address, id))
    ends.ended(KeptPrompt.dense([1, 2]))
    ends.close()
    told = {address: [request.closed for request in client.requests] for address, client in clients.items()}
    assert told == {"a:1": [["s"], ["u"]], "b:1": [["t"]]}
    assert all(client.closed for client in clients.values())
    ends.ended(prompt("a:1", "late"))  # no error after the end


def test_an_end_that_was_not_heard_is_sent_again() -> None:
    client = ScriptedClient()
    ends = SessionEnds({"a:1": client}.__getitem__)
    client.fails = "timeout"
    ends.ended(prompt("a:1", "s"))
    until(lambda: client.counters["timeouts"])
    client.fails = None
    ends.ended(prompt("a:1", "t"))
    ends.close()
    assert [request.closed for request in client.requests] == [["s"], ["s", "t"]]
