"""`skim explain`."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cluster.commands.grouped import grouped
from cluster.commands.selection_flags import SelectionFlags
from skim_common.errors import SkimError


@grouped
def explain(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML page to write.")],
    prompt: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompt: text, or a .json file with a list of chat messages."),
    ] = None,
    request: Annotated[
        str | None, typer.Option(metavar="ID", help="A request of a running endpoint: the id in its response.")
    ] = None,
    url: Annotated[str, typer.Option(help="The endpoint of --request. OPENAI_API_KEY is its key.")] = (
        "http://localhost:8000"
    ),
    speculator: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Speculator: a folder, or owner/name@revision.")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Target whose tokens are selected. The default is the speculator."),
    ] = None,
    chat: Annotated[bool, typer.Option(help="Wrap a text as one user turn of the chat template.")] = False,
    *,
    flags: SelectionFlags,
) -> None:
    """Show on a page what is kept of a prompt, with score and reason of each part.

    Give --prompt and --speculator to select now, in this process. Give --request with its --prompt and --target to see
    what a running endpoint kept: it holds no text.
    """
    from cluster.explain.page import explain_page
    from cluster.explain.sources import from_prompt, from_request, read_prompt_file

    if prompt is None or (target if request else speculator) is None:
        raise SkimError("give --prompt and --speculator, or --request with its --prompt and --target")
    text = read_prompt_file(prompt, chat=chat)
    if request is not None:
        source = from_request(url, request, text, str(target), key=os.environ.get("OPENAI_API_KEY"))
    else:
        models = str(speculator), str(target or speculator)
        source = from_prompt(text, *models, flags.prefill, engine=flags.engine, engine_options=flags.start_options)
    page = explain_page(*source)
    try:
        output.write_text(page, encoding="ascii")
    except OSError as error:
        raise SkimError(f"cannot write {output}: {error.strerror}") from None
    kept, tokens = source.explanation["kept_tokens"], source.explanation["prompt_tokens"]
    Console(stderr=True, highlight=False).print(
        f"Wrote {output}: {kept} of {tokens} tokens kept", markup=False, soft_wrap=True
    )
