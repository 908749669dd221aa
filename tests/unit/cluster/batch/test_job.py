"""The job without Ray: the same workers run one after the other, and the endpoint is a function."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest

from cluster.batch import job, worker
from cluster.batch.job import BatchOptions, run_batch
from cluster.batch.rows import Part
from cluster.batch.storage import absolute
from cluster.batch.worker import PartWorker, WorkerSettings
from cluster.serve import ray_cluster
from skim_common.errors import SkimError
from tests.unit.cluster.batch.conftest import row, write_rows


@pytest.fixture
def asked(serve: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the rows in the order in which the endpoint received them. A loop replaces Ray Data."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json={})
        body = json.loads(request.content)
        asked.append(body["seed"])
        usage = {"prompt_tokens": 10, "completion_tokens": 2}
        return httpx2.Response(400 if body["seed"] % 10 == 7 else 200, json={"seed": body["seed"], "usage": usage})

    def in_this_process(work: WorkerSettings, parts: list[Part], node_id: str | None) -> Iterator[dict[str, Any]]:
        for part in parts:
            sent = {"part": [msgspec.json.encode(part).decode()]}
            columns = asyncio.run(PartWorker(work)(sent))
            yield {name: column[0] for name, column in columns.items()}

    asked: list[int] = []
    serve(answer)
    monkeypatch.setattr(job, "_endpoint", lambda options, *_: nullcontext(options.endpoint))
    monkeypatch.setattr(worker, "answer_parts", in_this_process)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node"), raising=False)
    return asked


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`run()` runs the job and gives its printed lines; its files are in.jsonl and out.jsonl in tmp_path."""
    monkeypatch.chdir(tmp_path)

    def run(output: str = "out.jsonl") -> list[str]:
        said: list[str] = []
        run_batch(BatchOptions("in.jsonl", output, "http://endpoint", None, 4, 1, 60.0, None), said.append)
        return said

    return run


def output_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_rows_come_back_in_order_with_their_errors(asked: list[int], run: Any, tmp_path: Path) -> None:
    lines = [json.dumps(row(f"r{i}", seed=i)) for i in range(30)]
    lines[11] = json.dumps({**row("r11"), "url": "/v1/nothing"})
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    said = run()
    rows = output_rows(tmp_path / "out.jsonl")
    assert [r["custom_id"] for r in rows] == [f"r{i}" for i in range(30)]
    assert sorted(asked) == [i for i in range(30) if i != 11]
    for i, answer in enumerate(rows):
        if i == 11:
            assert answer["response"] is None
            assert answer["error"]["message"].startswith("line 12: url must be one of")
        else:
            assert answer["response"]["status_code"] == (400 if i % 10 == 7 else 200)
            assert answer["response"]["body"]["seed"] == i
    assert said[0] == "in.jsonl: 30 rows (29 x /v1/chat/completions)"
    assert said[-1] == f"Wrote {tmp_path}/out.jsonl: 30 rows, 4 of them errors"
    assert "30/30 rows, 4 errors" in said[-2]


def test_a_full_disk_leaves_no_temporary_files_and_the_job_goes_on_later(
    asked: list[int], run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "in.jsonl", 30)
    fsync, room = os.fsync, [0]

    def full(number: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        fsync(number)

    monkeypatch.setattr("os.fsync", full)
    for files in (0, 1, 1):  # no room for the plan, for a first and for a second part
        room[0] = files
        with pytest.raises(SkimError, match="No space left on device"):
            run()
        assert [file for file in tmp_path.rglob("*") if file.suffix == ".tmp"] == []
    room[0] = 100
    run()
    assert len(output_rows(tmp_path / "out.jsonl")) == 30


@pytest.mark.parametrize("home", [True, False])
def test_a_job_of_a_user_without_a_home_needs_a_folder(
    asked: list[int], run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: bool
) -> None:
    write_rows(tmp_path / "in.jsonl", 3)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    if not home:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
        with pytest.raises(SkimError, match=r"there is no home folder for ~/skim-batch/out\.jsonl: set SKIM_BATCH_DIR"):
            run()
        assert not list(tmp_path.glob("~*"))
    run(str(tmp_path / "out.jsonl") if not home else "out.jsonl")
    assert len(output_rows(tmp_path / ("skim-batch/out.jsonl" if home else "out.jsonl"))) == 3


def test_the_output_is_complete_before_the_pools_stop(
    asked: list[int], run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pools that were started for the batch take seconds to stop."""
    at_the_stop: list[int] = []

    @contextmanager
    def pools(options: BatchOptions, *_: Any) -> Iterator[str | None]:
        yield options.endpoint
        at_the_stop.append(len(output_rows(tmp_path / "out.jsonl")))

    monkeypatch.setattr(job, "_endpoint", pools)
    write_rows(tmp_path / "in.jsonl", 20)
    said = run()
    assert at_the_stop == [20]
    assert "Sending 20 rows to http://endpoint" in said


def test_a_stopped_job_goes_on(asked: list[int], run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "in.jsonl", 40)
    whole = worker.answer_parts

    def stopped(*arguments: Any) -> Iterator[dict[str, Any]]:
        reports = whole(*arguments)
        yield next(reports)
        yield next(reports)
        raise SystemExit

    with monkeypatch.context() as first:
        first.setattr(worker, "answer_parts", stopped)
        with pytest.raises(SystemExit):
            run()
    assert "Writing " + str(tmp_path / "out.jsonl") + ": 16 rows are already done" in run()
    assert sorted(asked) == list(range(40))
    assert [r["custom_id"] for r in output_rows(tmp_path / "out.jsonl")] == [f"r{i}" for i in range(40)]
    assert run()[-1] == f"{tmp_path}/out.jsonl is already finished"
    assert len(asked) == 40


def test_a_lost_endpoint_stops_the_job_with_what_is_done(
    serve: Any, asked: list[int], run: Any, tmp_path: Path
) -> None:
    write_rows(tmp_path / "in.jsonl", 20)
    answers = iter(range(9))

    def gone_after_a_while(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST" and next(answers, None) is not None:
            return httpx2.Response(200, json={})
        if request.method == "GET" and not asked:
            asked.append(0)
            return httpx2.Response(200, json={})
        raise httpx2.ConnectError("refused")

    serve(gone_after_a_while)
    with pytest.raises(SkimError, match=r"stopped answering; 8 of 20 rows are done: run the same command to continue"):
        run()
    assert not (tmp_path / "out.jsonl").exists()


def test_relative_outputs_of_ray_jobs_do_not_go_into_the_copied_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert job.output_folder() == tmp_path
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert job.output_folder() == Path.home() / "skim-batch"
    monkeypatch.setenv("SKIM_BATCH_DIR", "/data")
    assert job.output_folder() == Path("/data")
    assert absolute("s3://bucket/out.jsonl", Path("/data")) == "s3://bucket/out.jsonl"


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_batch_starts_and_joins_ray_as_a_deployment_does(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    """Checked, without the Serve of an earlier Ray, and tried again."""
    calls: list[str] = []
    monkeypatch.setattr(ray_cluster, "start_ray", lambda switches: calls.append("start"))
    monkeypatch.setattr(ray_cluster, "join_ray", lambda address: calls.append(f"join {address}"))
    monkeypatch.setattr("ray.shutdown", lambda: calls.append("leave"))
    with job._endpoint(BatchOptions("i", "o", "http://endpoint", None, 4, 1, 60.0, address), "id", print) as url:
        assert url == "http://endpoint"
    assert calls == ["start" if address is None else "join auto", "leave"]
