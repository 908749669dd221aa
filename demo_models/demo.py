"""`skim demo`: sends one question about a long document to a live endpoint, once dense and once speculative."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cluster.commands.flags import KeepRate, keep_rate_value
from cluster.commands.select import highlight_kept
from cluster.config.load import config_from_flags
from cluster.config.schema import DeploymentConfig
from cluster.json_file import write_json
from demo_models.answers import read_event, read_server_timing
from demo_models.documents import DemoDocument, make_document
from skim_common.errors import SkimError
from skim_common.proxies import client_options

REPOSITORY = Path(__file__).parents[1]
SHOWN_TOKENS = 360


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer. ttft_ms: from the request to the first token. parts_ms: the server's times, by part.

    headers: their values by name in lower case, as `GET /v1/requests/{id}` tells them.
    """

    text: str
    ttft_ms: float
    parts_ms: dict[str, float]
    headers: dict[str, str]
    request_id: str


def demo(
    tokens: Annotated[int, typer.Option(min=1024, max=16384, help="Length of the document.")] = 4096,
    keep_rate: KeepRate = None,
    seed: Annotated[int, typer.Option(help="Another seed, another document.")] = 7,
    port: Annotated[int, typer.Option(help="Port of the demo's endpoint; 0 takes a free one.")] = 0,
    target: Annotated[Path | None, typer.Option(metavar="MODEL", help="Another target.")] = None,
    speculator: Annotated[Path | None, typer.Option(metavar="MODEL", help="Another speculator.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Answer a question about a long document, dense and speculative, and show what was kept."""
    from cluster.serve.deployment import deployed

    console = Console(highlight=False)
    config = _demo_config(target, speculator, port, keep_rate_value(keep_rate))
    document = make_document(tokens, seed)
    console.print("Starting a speculator, a target and a router on this machine (about 40 s)")
    with (
        deployed(config, progress=lambda line: console.print(f"  {line}")) as url,
        httpx.Client(base_url=url, timeout=300, **client_options(url)) as client,
    ):
        console.print("  warming up\n")
        for mode in (False, True):
            # Warm up with another document: the measured requests must find no cached prefix.
            ask(client, config.served_model_name, make_document(tokens, seed + 1), mode)
        result = ask_twice(client, config.served_model_name, document, console)
    if json_file is not None:
        write_json(json_file, result)
        console.print(f"Wrote {json_file}")


def ask_twice(client: httpx.Client, model: str, document: DemoDocument, console: Console) -> dict[str, Any]:
    """Ask a running deployment about the document, dense and speculative, and show the answers. Raises SkimError."""
    dense, speculative = (ask(client, model, document, mode) for mode in (False, True))
    result = _result(document, dense, speculative)
    _show(console, result, _kept_lines(client, model, document, speculative))
    return result


def _demo_config(
    target: Path | None, speculator: Path | None, port: int, keep_rate: float | str | None
) -> DeploymentConfig:
    from demo_models.ports import free_port

    example = REPOSITORY / "examples" / "demo.yaml"
    if not example.exists():
        raise SkimError("the demo models are only in the repository: run `skim demo` in a clone of it")
    return config_from_flags(
        example,
        {
            "target.model": target,
            "speculator.model": speculator,
            "selection.keep_rate": keep_rate,
            "router.port": port or free_port(),
        },
    )


def ask(client: httpx.Client, model: str, document: DemoDocument, speculative: bool) -> Answer:
    """Stream one answer over HTTP. Raises SkimError with the server's message."""
    body = {
        "model": model,
        "messages": document.messages,
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "speculative_prefill": "always" if speculative else False,
    }
    text, ttft, request_id = "", 0.0, ""
    sent = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            response.read()
            raise SkimError(f"the endpoint answered {response.status_code}: {response.text}")
        for line in response.iter_lines():
            chunk = read_event(line)
            if chunk is None:
                continue
            request_id = chunk["id"]
            delta = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
            if delta:
                ttft = ttft or 1e3 * (time.perf_counter() - sent)
                text += delta
    # The response's own headers lack most values if its first token took longer than `router.keep_alive_s`.
    headers = client.get(f"/v1/requests/{request_id}").raise_for_status().json()["headers"]
    return Answer(text.strip(), ttft, read_server_timing(headers["server-timing"]), headers, request_id)


def _result(document: DemoDocument, dense: Answer, speculative: Answer) -> dict[str, Any]:
    headers = speculative.headers
    prompt_tokens, kept_tokens = int(headers["x-skim-prompt-tokens"]), int(headers["x-skim-kept-tokens"])
    return {
        "question": document.question.removeprefix("Question: "),
        "expected": document.expected,
        "prompt_tokens": prompt_tokens,
        "kept_tokens": kept_tokens,
        "keep_rate": kept_tokens / prompt_tokens,
        "dense": _shown(document, dense),
        "speculative": _shown(document, speculative),
    }


def _shown(document: DemoDocument, answer: Answer) -> dict[str, Any]:
    return {
        "answer": answer.text,
        "right": document.is_right(answer.text),
        "ttft_ms": answer.ttft_ms,
        "parts_ms": answer.parts_ms,
    }


def _kept_lines(client: httpx.Client, model: str, document: DemoDocument, answer: Answer) -> Text:
    """The text around the record that answers the question, with kept tokens highlighted."""
    body = {"model": model, "messages": document.messages, "return_token_strs": True}
    tokenized = client.post("/tokenize", json=body).raise_for_status().json()
    selection = client.get(f"/v1/requests/{answer.request_id}/selection").raise_for_status().json()
    pieces = [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece in tokenized["token_strs"]]
    kept = np.concatenate([np.arange(start, end) for start, end in selection["kept_spans"]])
    ends = np.cumsum([len(piece) for piece in pieces])
    asked_for = int(np.searchsorted(ends, "".join(pieces).find(document.record_sentence), side="right"))
    first = max(0, asked_for - SHOWN_TOKENS // 2)
    return highlight_kept(pieces, kept, first, min(len(pieces), first + SHOWN_TOKENS))


def _show(console: Console, result: dict[str, Any], kept: Text) -> None:
    console.print(f"[bold]Question[/]  {result['question']}")
    console.print(f"[bold]Expected[/]  {result['expected']}")
    console.print(
        f"[bold]Prompt[/]    {result['prompt_tokens']:,} tokens, {result['kept_tokens']:,} kept "
        f"({result['keep_rate']:.0%})\n"
    )
    dense, speculative = result["dense"], result["speculative"]
    table = Table("", "answer", "", "time to first token", header_style="bold")
    for name, answer in (("dense", dense), ("speculative", speculative)):
        mark = "[green]right[/]" if answer["right"] else "[red]wrong[/]"
        table.add_row(name, answer["answer"], mark, f"{answer['ttft_ms']:,.0f} ms")
    console.print(table)
    parts = Table("part of the speculative run", "ms", header_style="bold")
    for name, ms in speculative["parts_ms"].items():
        parts.add_row(name, f"{ms:,.1f}")
    console.print(parts)
    ratio = dense["ttft_ms"] / speculative["ttft_ms"]
    console.print(f"First token [bold]{ratio:.2f} x[/] as fast, speculation included.\n")
    console.print(Panel(kept, title="the document around the answer; kept tokens are highlighted", title_align="left"))
