"""`skim mcp`: an MCP server over stdio with one tool, which asks `/v1/select` what an agent need not read."""

import os
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from pydantic import Field

from skim_common.errors import SkimError, one_line
from skim_common.proxies import client_options

TIMEOUT_S = 600.0


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

    server.run("stdio")


def read_below(root: Path | None, path: str) -> str:
    """The text of a file in the folder `root`, in which a relative path starts. Raises SkimError; it names no place
    outside, and does not say whether something is there."""
    if root is None:
        raise SkimError("this server reads no files: send the text, or start it with --root")
    try:
        folder = root.resolve()
        file = (folder / path).resolve()
        if not file.is_relative_to(folder):
            raise SkimError("path must be in the folder that this server may read")
        if not file.is_file():
            raise SkimError("path names no file")
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, a circle of links, no UTF-8
        raise SkimError(f"path cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}") from None


async def selected(url: str, body: dict[str, Any]) -> str:
    """The kept lines of `body.text`, as `/v1/select` writes them. Raises SkimError."""
    base, key = url.rstrip("/").removesuffix("/v1"), os.environ.get("OPENAI_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    told: Any = None
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers, **client_options(base)) as client:
            answer = await client.post(f"{base}/v1/select", json=body)
            told = answer.json()
            if answer.is_success:
                return str(told["data"][0]["text"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        if not told:
            raise SkimError(f"the endpoint did not answer: {one_line(error) or type(error).__name__}") from None
    problem = told.get("error") if isinstance(told, dict) else None
    message = problem.get("message") if isinstance(problem, dict) else None
    raise SkimError(str(message or "the endpoint is no Skim endpoint; correct --url"))
