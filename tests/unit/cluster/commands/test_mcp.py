"""What the tool of `skim mcp` reads, and what it says when it cannot; `tests/e2e/test_select.py` asks it over stdio."""

import os
import signal
import subprocess
import sys

import httpx
import pytest

from cluster.commands import mcp
from router.explain.selected_text import kept_lines
from skim_common.errors import SkimError


@pytest.fixture
def root(tmp_path):
    """A folder with a file, beside one that nobody may read; links lead out of it and in a circle."""
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "log.txt").write_text("one\ntwo\n")
    (folder / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "secret.txt").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret.txt")
    (folder / "circle").symlink_to(folder / "circle")
    return folder


@pytest.mark.parametrize("path", ["sub/log.txt", "./sub/../sub/log.txt", "{root}/sub/log.txt"])
def test_a_file_of_the_folder_is_read(root, path):
    assert mcp.read_below(root, path.format(root=root)) == "one\ntwo\n"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("../secret.txt", "must be in the folder"),
        ("../nothing.txt", "must be in the folder"),
        ("../root-2/secret.txt", "must be in the folder"),
        ("{root}/../secret.txt", "must be in the folder"),
        ("/etc/passwd", "must be in the folder"),
        ("out", "must be in the folder"),
        ("nothing.txt", "names no file"),
        ("sub", "names no file"),
        ("", "names no file"),
        ("bytes", "is no UTF-8 text"),
        ("circle", "path"),
        ("a\0b", "is no UTF-8 text"),
    ],
)
def test_what_is_not_read(root, path, told):
    with pytest.raises(SkimError, match=told) as refused:
        mcp.read_below(root, path.format(root=root))
    assert str(root.parent) not in str(refused.value)


def test_line_ends_stay_as_they_are(root):
    """`kept_lines` counts as grep and sed do: a line feed ends a line, a lone carriage return does not."""
    (root / "ends.txt").write_bytes(b"one\r\ntwo\rstill two\nthree")
    text = mcp.read_below(root, "ends.txt")
    assert text == "one\r\ntwo\rstill two\nthree"
    assert kept_lines(text, [(0, len(text))])[0] == "1: one\n2: two\rstill two\n3: three"


def test_a_file_has_a_limit_of_size(root, monkeypatch):
    monkeypatch.setattr(mcp, "MAX_BYTES", 7)
    with pytest.raises(SkimError, match="more than 7 bytes; send the part that matters"):
        mcp.read_below(root, "sub/log.txt")
    with pytest.raises(SkimError, match="is no UTF-8"):
        mcp.read_below(root, "bytes")


def test_a_link_put_in_place_after_the_check_is_not_followed(root, monkeypatch):
    def swapped(folder, names, real=mcp._read_in):
        (root / "sub").rename(root / "away")
        (root / "sub").symlink_to(root.parent / "root-2")
        return real(folder, names)

    (root / "sub" / "secret.txt").write_text("mine")
    monkeypatch.setattr(mcp, "_read_in", swapped)
    with pytest.raises(SkimError, match="path") as refused:
        mcp.read_below(root, "sub/secret.txt")
    assert str(root.parent) not in str(refused.value)


def test_a_pipe_is_no_file(root):
    os.mkfifo(root / "pipe")
    with pytest.raises(SkimError, match="names no file"):
        mcp.read_below(root, "pipe")


def test_the_key_does_not_go_in_plain_text(skim, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    ran = skim("mcp", "--url", "http://example.com:8000")
    assert (ran.code, "in plain text; use an https --url" in ran.error) == (2, True)


def test_an_interrupt_ends_the_server_at_once():
    """Although a thread waits for stdin."""
    command = "from cluster.commands.mcp import mcp; print('ready', flush=True); mcp('http://localhost:1', None)"
    first = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    with subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        server.stdin.write(first)
        server.stdin.flush()
        assert server.stdout.readline() == b"ready\n"
        assert server.stdout.readline()  # the answer: it reads stdin now
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == -signal.SIGINT


def test_without_a_folder_no_file_is_read(root):
    with pytest.raises(SkimError, match="reads no files"):
        mcp.read_below(None, str(root / "sub" / "log.txt"))


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (400, '{"error": {"message": "question is blank"}}', "^question is blank$"),
        (200, '{"data": []}', "is no Skim endpoint"),
        (404, '{"detail": "Not Found"}', "is no Skim endpoint"),
        (500, '{"error": "no"}', "is no Skim endpoint"),
        (200, "[]", "did not answer"),
        (502, "<html>", "did not answer"),
    ],
)
async def test_an_endpoint_that_selects_nothing(monkeypatch, status, answer, told):
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text=answer))
    monkeypatch.setattr(mcp, "client_options", lambda base: {"transport": transport})
    with pytest.raises(SkimError, match=told):
        await mcp.selected("http://skim/v1", {})


async def test_the_key_and_the_body_arrive(monkeypatch):
    asked = []

    def answer(request):
        asked.append(request)
        return httpx.Response(200, json={"data": [{"text": "1: one"}]})

    monkeypatch.setattr(mcp, "client_options", lambda base: {"transport": httpx.MockTransport(answer)})
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert await mcp.selected("http://skim/v1/", {"text": "one"}) == "1: one"
    assert (str(asked[0].url), asked[0].headers["authorization"]) == ("http://skim/v1/select", "Bearer key")
    assert asked[0].content == b'{"text":"one"}'


def test_a_folder_that_is_not_there(skim, tmp_path):
    ran = skim("mcp", "--root", tmp_path / "nowhere")
    assert (ran.code, "is no folder" in ran.error) == (2, True)
