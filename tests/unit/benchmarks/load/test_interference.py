"""What `skim bench interference` measures, with a server of its own, and its figures, from given messages."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from benchmarks.load import interference
from benchmarks.load.interference import InterferenceSettings, Message, describe, measure, phase, summary, table
from skim_common.errors import SkimError

SETTINGS = InterferenceSettings("t", "s", streams=2, prompt_tokens=1200, before_s=0.5, rounds=2)
TOKEN_S, READ_S = 0.01, 0.3


class Server:
    """Streams a token every TOKEN_S, and reads a longer prompt in READ_S. blocks: no token comes meanwhile.

    answer_tokens: the most of a stream.
    """

    def __init__(self, *, blocks=False, answer_tokens=10**6):
        self._blocks, self._answer_tokens, self._engine = blocks, answer_tokens, asyncio.Lock()
        self.bodies, self.ended = [], 0

    async def answer(self, request):
        body = await request.json()
        self.bodies.append(body)
        stream = web.StreamResponse()
        await stream.prepare(request)
        if len(body["prompt"]) > interference.STREAM_PROMPT:
            async with self._engine if self._blocks else asyncio.Lock():
                await asyncio.sleep(READ_S)
        try:
            for token in range(min(body["max_tokens"], self._answer_tokens)):
                await asyncio.sleep(TOKEN_S)
                async with self._engine:
                    event = {"id": "r", "choices": [{"text": "a"}], "usage": {"completion_tokens": 2 * token + 2}}
                await stream.write(f"data: {json.dumps(event)}\n\n".encode())
        finally:
            self.ended += 1
        return stream


async def measured(server, options=None):
    app = web.Application()
    app.router.add_post("/v1/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            return await measure(session, f"http://127.0.0.1:{runner.addresses[0][1]}", SETTINGS, 1, options)
    finally:
        await runner.cleanup()


async def test_a_read_that_stops_the_streams_is_seen_and_one_that_does_not_is_not():
    stopped, alone = [await measured(Server(blocks=blocks)) for blocks in (True, False)]
    # The reads of two prompts follow each other, and each stops the streams for READ_S.
    assert stopped["during"]["longest_ms"] >= 1e3 * READ_S
    stopped_share, alone_share = (
        one["during"]["tokens_per_s"] / one["before"]["tokens_per_s"] for one in (stopped, alone)
    )
    assert 2 * stopped_share < alone_share
    assert len(stopped["first_ms"]) == SETTINGS.prompts
    assert min(stopped["first_ms"]) >= 1e3 * READ_S


async def test_what_is_asked():
    server = Server()
    await measured(server, {"enabled": "always", "keep_rate": 0.2})
    lengths = sorted(len(body["prompt"]) for body in server.bodies)
    assert lengths == [interference.STREAM_PROMPT] * SETTINGS.streams + [1200] * SETTINGS.prompts
    assert len({str(body["prompt"]) for body in server.bodies}) == len(server.bodies), "a cache would serve it"
    options = [body["speculative_prefill"] for body in sorted(server.bodies, key=lambda body: len(body["prompt"]))]
    assert options == [False, False, *[{"enabled": "always", "keep_rate": 0.2}] * 2]
    stock = Server()
    await measured(stock)
    assert not any("speculative_prefill" in body for body in stock.bodies)


async def test_the_streams_end_with_the_round():
    server = Server()
    await measured(server)
    assert server.ended == SETTINGS.streams + SETTINGS.prompts


async def test_a_stream_that_ends_too_soon_is_an_error():
    with pytest.raises(SkimError, match="a stream ended before"):
        await measured(Server(answer_tokens=5))


def test_tokens_of_the_phase_and_pauses_that_overlap_with_it():
    streams = [
        [Message(0.9, 1), Message(1.5, 3), Message(2.0, 1), Message(2.6, 5)],
        [Message(0.0, 1), Message(0.5, 1), Message(3.0, 1)],
    ]
    found = phase(streams, 1.0, 2.0)
    assert found["tokens_per_s"] == pytest.approx(4 / 2)
    assert found["longest_ms"] == pytest.approx(2500)
    assert phase([[Message(i / 100, 1) for i in range(401)]], 1, 3) == pytest.approx(
        {"tokens_per_s": 100, "p99_ms": 10, "longest_ms": 10}
    )
    # One pause of a second in 201 is beyond the 99th percentile; three are not.
    late = [i / 100 for i in range(200)]
    assert phase([[Message(at, 1) for at in [*late, 3.0]]], 0, 3)["p99_ms"] == pytest.approx(10)
    assert phase([[Message(at, 1) for at in [*late, 3.0, 4.0, 5.0]]], 0, 5)["p99_ms"] == pytest.approx(1000)
    assert phase([[]], 1, 3)["p99_ms"] == 2000


def rounds():
    def found(before, during, first):
        phases = {"tokens_per_s": before, "p99_ms": 10.0, "longest_ms": 20.0}
        return {"before": phases, "during": {**phases, "tokens_per_s": during}, "first_ms": first}

    stock = {"stock 512": found(100.0, 10.0, [1000.0, 3000.0])}
    return [{**stock, "skim": found(50.0, speed, [500.0])} for speed in (40.0, 20.0)]


def result():
    return {"settings": vars(SETTINGS) | {"target_cores": [1], "speculator_cores": [0]}, "rows": summary(rounds())}


def test_shares_are_formed_within_a_round():
    skim, stock = summary(rounds())
    assert (skim["system"], stock["system"]) == ("skim", "stock 512")
    assert skim["share"] == pytest.approx({"median": 0.6, "lowest": 0.4, "highest": 0.8})
    assert stock["first_ms"]["median"] == 2000
    columns, cells = table(result())
    assert {len(row) for row in cells} == {len(columns)}
    assert cells[0][:4] == ["skim", "50.0", "30.0", "0.60 (0.40 to 0.80)"]
    assert "1 for Skim's target, 1 for its speculator, 2 for a stock server" in describe(result())
    everywhere = {**result(), "settings": vars(SETTINGS)}
    assert "All engines have all cores." in describe(everywhere)


def test_the_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    interference.plot(result(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size


def test_cores_of_one_engine_alone_are_refused(skim):
    ran = skim("bench", "interference", "--target-cores", "1")
    assert ran.code == 2
    assert "give both --target-cores and --speculator-cores" in ran.error
