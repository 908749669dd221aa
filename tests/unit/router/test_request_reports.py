"""`GET /v1/requests/{id}`: the values of a request's headers, on this router or on another one."""

import json

import httpx
import pytest
from fastapi import FastAPI

from router.request_reports import MAX_REPORTS, RequestReports


async def test_the_latest_reports_are_held():
    reports = RequestReports()
    for number in range(MAX_REPORTS + 1):
        reports.add(f"r{number}", {"x-skim-mode": "dense"})
    assert reports.held("r0") is None
    reports.add("r1", {"x-skim-mode": "speculative"})
    reports.add("new", {})
    assert json.loads(reports.held("r1")) == {"id": "r1", "headers": {"x-skim-mode": "speculative"}}
    assert reports.held("r2") is None


@pytest.mark.parametrize("name", ["r", "r-0", "r_0"])
async def test_it_is_found_by_the_id_in_the_body(name):
    reports = RequestReports()
    reports.add(name, {})
    assert json.loads(reports.held("r")) == {"id": "r", "headers": {}}


def test_another_key_finds_nothing():
    reports = RequestReports()
    reports.add("r", {}, "team")
    assert reports.held("r") is None
    assert reports.held("r", "other") is None
    assert json.loads(reports.held("r", "team")) == {"id": "r", "headers": {}}


async def test_another_router_is_asked():
    async def ask_others(request_id, key):
        return '{"id": "far"}' if request_id == "far" else None

    app, reports = FastAPI(), RequestReports()
    reports.add("near", {"a": "b"})
    reports.add_route(app, ask_others)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        assert (await client.get("/v1/requests/near")).json() == {"id": "near", "headers": {"a": "b"}}
        assert (await client.get("/v1/requests/far")).json() == {"id": "far"}
        missing = await client.get("/v1/requests/nobody")
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "request_id")
