"""A speculator process dies, restarts or stalls, or the network does: drafts resume on a new stream."""

import signal

from kv_transfer.draft_channel import ExchangeDeadline
from tests.chaos.support.switch import threaded
from tests.unit.kv_transfer.channel_peer import HOST, REQUEST, client, honest, process, serving, until


def test_a_killed_server_that_comes_back():
    with process() as (peer, port), client(f"{HOST}:{port}") as it:
        assert it.exchange(REQUEST)
        peer.kill()
        peer.wait()
        assert it.exchange(REQUEST) is None
        until(lambda: it.exchange(REQUEST) or it.counters["breaker_opened"] > 3)
        assert it.counters["exchanges"] == 1
        with process(port):
            until(lambda: it.exchange(REQUEST))
            assert it.exchange(REQUEST)


def test_a_server_that_came_back_unnoticed():
    with process() as (peer, port), client(f"{HOST}:{port}") as it:
        assert it.exchange(REQUEST)
        peer.kill()
        peer.wait()
        with process(port):
            until(lambda: it.exchange(REQUEST))
            assert it.counters["breaker_opened"] <= 1


def test_a_stopped_server_that_goes_on():
    with process() as (peer, port), client(f"{HOST}:{port}") as it:
        assert it.exchange(REQUEST)
        peer.send_signal(signal.SIGSTOP)
        try:
            it._deadline = ExchangeDeadline(0.05)
            until(lambda: it.exchange(REQUEST) or it.counters["timeouts"] == 5)
            assert it.counters["exchanges"] == 1
            assert it.counters["breaker_opened"] >= 1
        finally:
            peer.send_signal(signal.SIGCONT)
        it._deadline = ExchangeDeadline(60)
        until(lambda: it.exchange(REQUEST))
        assert it.exchange(REQUEST)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_a_network_that_is_cut_and_mended():
    with serving(honest) as address, threaded(port_of(address)) as switch, client(f"{HOST}:{switch.port}") as it:
        assert it.exchange(REQUEST)
        switch.cut()
        until(lambda: it.exchange(REQUEST) is None)
        failed = it.counters["breaker_opened"]
        until(lambda: it.exchange(REQUEST) or it.counters["breaker_opened"] > failed + 3)
        switch.mend()
        until(lambda: it.exchange(REQUEST))
        assert it.exchange(REQUEST)


def test_a_network_that_is_slow_for_a_while():
    """A late reply is dropped, though it answers a request that looks like the next one."""
    with serving(honest) as address, threaded(port_of(address)) as switch, client(f"{HOST}:{switch.port}") as it:
        assert it.exchange(REQUEST)
        it._deadline = ExchangeDeadline(0.05)
        switch.delay_s = 0.2
        until(lambda: it.exchange(REQUEST) or it.counters["timeouts"] == 5)
        assert it.counters["exchanges"] == 1
        switch.delay_s = 0.0
        it._deadline = ExchangeDeadline(60)
        until(lambda: it.exchange(REQUEST))
        assert it.exchange(REQUEST)
