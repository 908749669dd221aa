"""`GET /v1/requests/{id}`: the values of a request's headers, on this router or on another one."""

import json

import httpx
import pytest
from fastapi import FastAPI

from router.explain.log import MAX_REPORT_BYTES, MAX_REPORTS, RequestLog
from router.http.response import MAX_VALUE_CHARS, bounded


async def test_the_latest_reports_are_held():
    reports = RequestLog()
    for number in range(MAX_REPORTS + 1):
        reports.add_report(f"r{number}", {"x-skim-mode": "dense"})
    assert reports.report("r0") is None
    reports.add_report("r1", {"x-skim-mode": "speculative"})
    reports.add_report("new", {})
    assert json.loads(reports.report("r1")) == {"id": "r1", "headers": {"x-skim-mode": "speculative"}}
    assert reports.report("r2") is None


@pytest.mark.parametrize(("name", "values"), [("r", {"x": "1, " * 2**19}), ("r" * 2**20, {})])
async def test_long_reports_are_bounded_by_their_bytes(name, values):
    """Values of many prompts, or long names. Control: as many short ones are all held."""
    reports, short = RequestLog(), RequestLog()
    for number in range(64):
        reports.add_report(f"{number}{name}", values)
        short.add_report(f"{number}", {})
    assert all(short.report(f"{number}") for number in range(64))
    sizes = [len(found) for number in range(64) if (found := reports.report(f"{number}{name}"))]
    assert 0 < sum(sizes) <= MAX_REPORT_BYTES < 64 * sizes[-1]
    assert reports.report(f"63{name}")
    reports.add_report("r", {"x": "y" * MAX_REPORT_BYTES})
    assert reports.report("r") is None


@pytest.mark.parametrize("name", ["r", "r-0", "r_0"])
async def test_it_is_found_by_the_id_in_the_body(name):
    reports = RequestLog()
    reports.add_report(name, {})
    assert json.loads(reports.report("r")) == {"id": "r", "headers": {}}


def test_another_key_finds_nothing():
    reports = RequestLog()
    reports.add_report("r", {}, "team")
    assert reports.report("r") is None
    assert reports.report("r", "other") is None
    assert json.loads(reports.report("r", "team")) == {"id": "r", "headers": {}}


def test_a_key_removes_its_own_reports():
    reports = RequestLog()
    reports.add_report("r", {}, "few")
    for number in range(MAX_REPORTS + 1):
        reports.add_report(f"{number}", {}, "many")
    assert reports.report("r", "few")
    assert reports.report("0", "many") is None


async def test_another_router_is_asked():
    async def ask_others(part, request_id, key):
        return '{"id": "far"}' if request_id == "far" else None

    app, reports = FastAPI(), RequestLog()
    reports.add_report("near", {"a": "b"})
    reports.add_routes(app, ask_others)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        assert (await client.get("/v1/requests/near")).json() == {"id": "near", "headers": {"a": "b"}}
        assert (await client.get("/v1/requests/far")).json() == {"id": "far"}
        missing = await client.get("/v1/requests/nobody")
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "request_id")


@pytest.mark.asyncio(loop_scope="session")
async def test_many_prompts_have_bounded_headers_and_all_their_values_in_the_report(client):
    body = {"model": "demo", "prompt": ["a b"] * 250, "max_tokens": 1}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200
    ours = {name: value for name, value in response.headers.items() if name.startswith("x-skim-")}
    assert len(ours) == 8
    assert all(len(value) <= MAX_VALUE_CHARS for value in ours.values())
    assert sum(len(name) + len(value) for name, value in response.headers.items()) < 4000
    report = (await client.get(f"/v1/requests/{response.json()['id']}")).json()["headers"]
    for name, value in ours.items():
        told, whole = value.removesuffix(", ...").split(", "), report[name].split(", ")
        assert (len(whole), told) == (250, whole[: len(told)]), name
        assert value.endswith(", ...") == (len(report[name]) > MAX_VALUE_CHARS)


@pytest.mark.parametrize("length", [MAX_VALUE_CHARS - 1, MAX_VALUE_CHARS, MAX_VALUE_CHARS + 1])
def test_a_value_is_cut_only_if_it_is_too_long(length):
    value = ("1234, " * MAX_VALUE_CHARS)[: length - 1] + "5"
    cut = bounded(value)
    assert (cut == value) == (length <= MAX_VALUE_CHARS)
    assert len(cut) <= MAX_VALUE_CHARS
    assert cut == value or cut.removesuffix(", ...").split(", ") == ["1234"] * (cut.count("1234"))
