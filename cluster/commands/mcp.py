"""`skim mcp`: an MCP server over stdio with one tool, which asks `/v1/select` what an agent need not read."""

import os
import signal
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from pydantic import Field

from router.options.settings import RouterConfig
from skim_common.errors import SkimError, one_line
from skim_common.proxies import client_options, is_loopback

TIMEOUT_S = 600.0
MAX_BYTES: int = RouterConfig.model_fields["max_body_bytes"].default
"""Of a file: what an endpoint takes, if its deployment says nothing else."""


def mcp(
    url: Annotated[str, typer.Option(help="The endpoint. OPENAI_API_KEY is its key.")] = "http://localhost:8000",
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Agents name files in this folder; without it, none.")
    ] = None,
) -> None:
    """Offer agents the tool `skim` over stdio (MCP): the lines of a text that matter for a question."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise SkimError("the package `mcp` is not installed: pip install 'skim-serve[mcp]'") from None
    if root is not None and not root.is_dir():
        raise SkimError(f"--root {root} is no folder; name one that exists")
    if os.environ.get("OPENAI_API_KEY") and not url.lower().startswith("https:") and not is_loopback(url):
        raise SkimError("OPENAI_API_KEY would go over the network in plain text; use an https --url, or unset it")
    server = MCPServer("skim", log_level="ERROR")

    @server.tool(structured_output=False)
    async def skim(
        question: Annotated[str, Field(description="what you want to know of the text")],
        path: Annotated[str | None, Field(description="the file that has the text, in place of text")] = None,
        text: Annotated[str | None, Field(description="the text, such as the output of a command")] = None,
        max_tokens: Annotated[int | None, Field(description="the most tokens of the text to return", ge=1)] = None,
    ) -> str:
        """The lines of a long file or text that matter for a question, with their numbers; gaps are marked."""
        try:
            if (path is None) == (text is None):
                raise SkimError("give path or text, not both and not none")
            text = text if path is None else read_below(root, path)
            return await selected(url, {"text": text, "question": question, "max_tokens_kept": max_tokens})
        except SkimError as error:
            raise ToolError(str(error)) from None

    # A thread waits for the next line of stdin, which no exception ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server.run("stdio")


def read_below(root: Path | None, path: str) -> str:
    """The text of a file in the folder `root`, in which a relative path starts; line ends stay. Raises SkimError; it
    names no place outside, and does not say whether something is there."""
    if root is None:
        raise SkimError("this server reads no files: send the text, or start it with --root")
    try:
        folder = root.resolve()
        file = (folder / path).resolve()
        if not file.is_relative_to(folder):
            raise SkimError("path must be in the folder that this server may read")
        data = _read_in(folder, file.relative_to(folder).parts)
        if len(data) > MAX_BYTES:
            raise SkimError(f"the file has more than {MAX_BYTES} bytes; send the part that matters as text")
        return data.decode("utf-8")
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, a circle of links, no UTF-8
        raise SkimError(f"path cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}") from None


def _read_in(folder: Path, names: tuple[str, ...]) -> bytes:
    """At most MAX_BYTES + 1 bytes of a regular file below `folder`. No link is followed, also none that was put in the
    place of a folder since the path was resolved. Raises OSError, and SkimError for what is no file."""
    with ExitStack() as opened:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, at)
        for name in names:
            try:
                at = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)  # a pipe would wait
            except (FileNotFoundError, NotADirectoryError):
                raise SkimError("path names no file") from None
            opened.callback(os.close, at)
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise SkimError("path names no file")
        with open(at, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)


async def selected(url: str, body: dict[str, Any]) -> str:
    """The kept lines of `body.text`, as `/v1/select` writes them. Raises SkimError."""
    base, key = url.rstrip("/").removesuffix("/v1"), os.environ.get("OPENAI_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    reply: Any = None
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers, **client_options(base)) as client:
            answer = await client.post(f"{base}/v1/select", json=body)
            reply = answer.json()
            if answer.is_success:
                return str(reply["data"][0]["text"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        if not reply:
            raise SkimError(f"the endpoint did not answer: {one_line(error) or type(error).__name__}") from None
    problem = reply.get("error") if isinstance(reply, dict) else None
    message = problem.get("message") if isinstance(problem, dict) else None
    raise SkimError(str(message or "the endpoint is no Skim endpoint; correct --url"))
