"""Skim's log records in the log files of Ray Serve, written by Serve's own code, without a running Ray."""

import json
import logging
import logging.config
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve import context
from ray.serve._private import logging_utils
from ray.serve._private.common import ServeComponentType
from ray.serve.schema import LoggingConfig

from actors.observability.logs import PACKAGES, log_through_serve
from actors.pool_actor import reply_to_failure
from actors.ray_hooks.serve import kept_log_file


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`replica(encoding)` makes this process log like a Serve replica and returns the log file. Undone at the end."""
    loggers = [logging.getLogger(name) for name in ("ray.serve", *PACKAGES)]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    monkeypatch.setattr(logging_utils, "RAY_SERVE_LOG_TO_STDERR", True)  # else it takes print and stdout over
    monkeypatch.setattr(logging, "raiseExceptions", True)
    # `skim serve` filters what it prints: a test of it may have run in this process.
    monkeypatch.setattr(logging.getLogger("ray.serve"), "filters", [])

    def start(encoding: str) -> Path:
        logging.getLogger("ray.serve").handlers = []
        logging_utils.configure_component_logger(
            component_name="target",
            component_id="r1",
            logging_config=LoggingConfig(encoding=encoding, logs_dir=str(tmp_path), enable_access_log=False),
            component_type=ServeComponentType.REPLICA,
            max_bytes=10**6,
            backup_count=1,
        )
        monkeypatch.setattr(context, "_INTERNAL_REPLICA_CONTEXT", SimpleNamespace())
        log_through_serve()
        [file] = tmp_path.glob("*.log")
        return file

    yield start
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def request_id() -> Iterator[str]:
    token = context._serve_request_context.set(context._RequestContext(request_id="id-of-the-request"))
    yield "id-of-the-request"
    context._serve_request_context.reset(token)


def test_a_record_is_one_json_object_with_the_requests_id(replica: Any, request_id: str) -> None:
    file = replica("JSON")
    reply_to_failure(RuntimeError("out of memory"), "target")
    logging.getLogger("router.dispatch.dispatcher").warning("request %s runs dense: %s", "r-0", "gone")
    logging.getLogger("router.dispatch.dispatcher").debug("below the level")
    failure, dense = (json.loads(line) for line in file.read_text().splitlines())
    assert failure["message"] == "the target engine failed on a request"
    assert "out of memory" in failure["exc_text"]
    assert dense["message"] == "request r-0 runs dense: gone"
    for record in (failure, dense):
        assert (record["request_id"], record["deployment"], record["replica"]) == (request_id, "target", "r1")


def test_text_has_the_id_too(replica: Any, request_id: str) -> None:
    file = replica("TEXT")
    reply_to_failure(RuntimeError("out of memory"), "target")
    first = file.read_text().splitlines()[0]
    assert request_id in first
    assert first.endswith("the target engine failed on a request")


def test_without_it_our_records_are_not_there(replica: Any) -> None:
    """Negative control: Serve's logging alone does not include our loggers."""
    file = replica("JSON")
    for name in PACKAGES:
        logging.getLogger(name).handlers = []
    logging.getLogger("router.dispatch.dispatcher").warning("lost")
    assert file.read_text() == ""


@pytest.mark.parametrize("kept", [True, False])
def test_what_configures_logging_leaves_serves_file_in_use(replica: Any, kept: bool) -> None:
    """vllm.logger does so when it is imported. Control: without the context the file gets nothing any more."""
    file = replica("TEXT")
    with kept_log_file() if kept else nullcontext():
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    logging.getLogger("router.dispatch.dispatcher").error("after the import")
    assert ("after the import" in file.read_text()) is kept


def test_outside_of_a_replica_nothing_changes() -> None:
    log_through_serve()
    assert all(logging.getLogger(name).propagate for name in PACKAGES)


def test_every_package_that_runs_in_a_replica_is_named() -> None:
    root = Path(__file__).parents[4]
    files = [file for package in root.glob("*/__init__.py") for file in package.parent.rglob("*.py")]
    logging_ones = {file.relative_to(root).parts[0] for file in files if "getLogger(__name__)" in file.read_text()}
    assert logging_ones - {"benchmarks", "cluster", "evals", "tests"} <= set(PACKAGES)
    assert {"actors", "router", "speculator_service"} <= logging_ones


@pytest.mark.parametrize("ours", [True, False])
def test_a_full_disk_fails_no_request(replica: Any, monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
    """Lines are lost while the disk is full; logging goes on when it has room again. Control: Serve's logging alone."""
    file = replica("JSON")
    serves = logging.getLogger("ray.serve")
    [to_file] = {
        id(handler): handler
        for buffer in serves.handlers
        if isinstance(handler := getattr(buffer, "target", buffer), logging.FileHandler)
    }.values()
    if not ours:
        monkeypatch.setattr(logging, "raiseExceptions", True)
    monkeypatch.setattr(sys, "stderr", logging_utils.StreamToLogger(serves, logging.INFO, sys.stderr))
    usual, records = to_file.stream, list[logging.LogRecord]()
    monkeypatch.setattr(to_file, "filters", [lambda record: records.append(record) or True])
    with suppress(OSError), open("/dev/full", "w", encoding="utf-8") as full:
        to_file.stream = full
        with nullcontext() if ours else suppress(RecursionError):
            reply_to_failure(RuntimeError("out of memory"), "target")
            logging.getLogger("router.dispatch.dispatcher").warning("lost")
    to_file.stream = usual
    # The control logs the failure of each line as a line, until Python's stack ends. What happens then differs.
    assert len(records) == 2 if ours else len(records) > 20
    logging.getLogger("router.dispatch.dispatcher").warning("kept")
    assert '"kept"' in file.read_text()
