"""What `skim bench refusals` counts, with a server of its own in place of a deployment."""

import asyncio

import pytest
from aiohttp import web

from benchmarks.load import refusals
from benchmarks.load.refusals import Ended, RefusalSettings, describe, row, table
from skim_common.errors import SkimError

SETTINGS = RefusalSettings("t", "s", seconds=10.0)


def test_a_row_tells_served_from_refused_and_failed():
    ends = [Ended(200, 100.0)] * 40 + [Ended(429, 10.0), Ended(429, 30.0), Ended(503, 1.0), Ended(0, 1.0)]
    found = row(2.0, SETTINGS, ends)
    assert [found[name] for name in ("sent", "served", "refused", "failed")] == [44, 40, 2, 2]
    assert found["served_per_s"] == 5.0  # the first fifth of the time is not counted
    assert found["rate"] == 2.0 * SETTINGS.sustainable
    assert found["refusal_ms"]["median"] == 20.0
    assert found["refusal_ms"]["max"] == 30.0
    assert row(1.0, SETTINGS, ends[:40])["refusal_ms"] is None


@pytest.fixture
def server(monkeypatch):
    """Runs `refusals._measure` against a server that serves one request at a time and refuses all others."""

    async def measured(settings, warm_up_status=200):
        busy, asked = asyncio.Lock(), []

        async def answer(request):
            asked.append(await request.json())
            if len(asked) <= refusals.WARM_UPS:
                return web.Response(status=warm_up_status)
            if busy.locked():
                return web.Response(status=429)
            async with busy:
                await asyncio.sleep(settings.prefill_ms / 1e3)
            return web.Response()

        app = web.Application()
        app.router.add_post("/v1", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            return await refusals._measure(settings, url, lambda what, done: None), asked
        finally:
            await runner.cleanup()

    return measured


async def test_every_request_is_sent_whatever_the_server_does(server):
    settings = RefusalSettings("t", "s", prefill_ms=50.0, loads=(0.5, 3.0), seconds=2.0)
    (low, high), asked = await server(settings)
    assert high["sent"] > 2 * low["sent"] > 0
    assert high["refused"] > low["refused"]
    assert all(one["sent"] == one["served"] + one["refused"] for one in (low, high))
    texts = [body["messages"][0]["content"] for body in asked]
    assert len(set(texts)) == len(texts), "no prompt twice: a cache would answer it"


async def test_a_deployment_that_does_not_answer_is_told(server):
    with pytest.raises(SkimError, match="not answered"):
        await server(SETTINGS, warm_up_status=503)


def test_the_table_has_a_row_for_each_load():
    rows = [row(load, SETTINGS, [Ended(200, 100.0)] * 80 + [Ended(429, 9.0)] * more) for load, more in ((1, 0), (3, 9))]
    result = {"settings": vars(SETTINGS), "sustainable": SETTINGS.sustainable, "rows": rows, "ratio": 0.97}
    columns, cells = table(result)
    assert [dict(zip(columns, one, strict=False))["refused"] for one in cells] == ["0", "9"]
    assert {len(one) for one in cells} == {len(columns)}
    assert "10.0 requests/s are sustainable" in describe(result)
    assert describe(result).endswith("0.97.")


def test_the_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [row(1, SETTINGS, [Ended(200, 100.0)] * 80), row(3, SETTINGS, [Ended(200, 100.0), Ended(429, 9.0)])]
    refusals.plot({"settings": vars(SETTINGS), "sustainable": 10.0, "rows": rows}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size
