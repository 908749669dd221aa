"""`skim select` and `skim explain`: what a speculator keeps of a prompt, as text and as a page."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import httpx
import numpy as np
import typer
from rich.text import Text

from cluster.commands.flags import SelectionFlags, grouped
from cluster.commands.output import console, progress
from cluster.json_file import read_json, read_text
from router.prompt.contents import Messages
from router.prompt.rendered import RenderedPrompt
from skim.pair import Pair
from skim.prompts import as_token_ids, render
from skim_common.errors import SkimError
from skim_common.models.info import load_tokenizer
from skim_common.proxies import client_options

if TYPE_CHECKING:
    from skim.selection import PairSelection

HTTP_TIMEOUT_S = 30.0

Speculator = typer.Option(metavar="MODEL", help="Speculator: a folder, or owner/name@revision.")
Target = typer.Option(metavar="MODEL", help="Target whose tokens are selected. The default is the speculator.")
AsChat = Annotated[bool, typer.Option("--chat", help="Wrap a text as one user turn of the chat template.")]


@grouped
def select(
    speculator: Annotated[Path, Speculator],
    target: Annotated[Path | None, Target] = None,
    prompt_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Prompt as text.")] = None,
    prompt_ids: Annotated[Path | None, typer.Option(metavar="FILE", help="Prompt as a JSON list of token ids.")] = None,
    chat: AsChat = False,
    *,
    flags: SelectionFlags,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Run only the speculator and see what it keeps of a prompt."""
    model = str(target or speculator)
    tokenizer = load_tokenizer(model)
    if prompt_file is not None and prompt_ids is None:
        prompt = render(_as_chat(read_text(prompt_file), chat), tokenizer)
    elif prompt_ids is not None and prompt_file is None:
        ids = read_json(prompt_ids)
        if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise SkimError(f"{prompt_ids} must hold a JSON list of token ids, for example [1, 17, 4]")
        prompt = RenderedPrompt(as_token_ids(ids))
    else:
        raise SkimError("give the prompt by either --prompt-file or --prompt-ids")
    selected = _selected(speculator, model, prompt, flags)
    kept, size = selected.kept, selected.kept.token_ids.size
    console.print(highlight_kept([tokenizer.decode([i]) for i in prompt.token_ids.tolist()], kept.positions))
    console.print(
        f"\nkept {size} of {kept.context_length} tokens "
        f"({size / kept.context_length:.1%}), {selected.coverage:.1%} of the importance"
    )
    if json_file is not None:
        selected.save(json_file)
        progress.print(f"Wrote {json_file}", markup=False, soft_wrap=True)


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
    speculator: Annotated[Path | None, Speculator] = None,
    target: Annotated[Path | None, Target] = None,
    chat: AsChat = False,
    *,
    flags: SelectionFlags,
) -> None:
    """Show on a page what is kept of a prompt, with score and reason of each part.

    Give --prompt and --speculator to select now, in this process. Give --request with its --prompt and --target to see
    what a running endpoint kept: it holds no text.
    """
    from cluster.explain.page import PromptText, explain_page, read_token_text

    if prompt is not None and request is not None and target is not None:
        model = str(target)
        explanation, rendered = explained_by(url, request, read_prompt_file(prompt, chat=chat), model)
    elif prompt is not None and request is None and speculator is not None:
        model = str(target or speculator)
        explanation, rendered = explained_now(read_prompt_file(prompt, chat=chat), speculator, model, flags)
    else:
        raise SkimError("give --prompt and --speculator, or --request with its --prompt and --target")
    page = explain_page(explanation, PromptText.of(rendered, read_token_text(model)))
    try:
        output.write_text(page, encoding="ascii")
    except OSError as error:
        raise SkimError(f"cannot write {output}: {error.strerror}") from None
    kept, size = explanation["kept_tokens"], explanation["prompt_tokens"]
    progress.print(f"Wrote {output}: {kept} of {size} tokens kept", markup=False, soft_wrap=True)


def explained_now(
    prompt: str | Messages, speculator: Path, model: str, flags: SelectionFlags
) -> tuple[dict[str, Any], RenderedPrompt]:
    """The selection from a prompt as `Explained.as_json`, and the prompt in the tokens of `model`. Raises SkimError."""
    from router.explain.explained import Explained

    options = flags.prefill
    rendered = render(prompt, load_tokenizer(model), options)
    selected = _selected(speculator, model, rendered, flags)
    return Explained(selected, options.selection, selected.layout, selected.timings).as_json(), rendered


def explained_by(
    url: str, request_id: str, prompt: str | Messages, model: str
) -> tuple[dict[str, Any], RenderedPrompt]:
    """The explain view of a running endpoint, and its prompt in the tokens of the target `model`.

    url: with or without /v1; its key is OPENAI_API_KEY. Raises SkimError if the endpoint does not answer or has no
    entry, or if the prompt does not fit it.
    """
    base, key = url.rstrip("/").removesuffix("/v1"), os.environ.get("OPENAI_API_KEY")
    try:
        answer = httpx.get(
            f"{base}/v1/requests/{quote(request_id, safe='')}/selection",
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=HTTP_TIMEOUT_S,
            **client_options(base),
        )
        explanation = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise SkimError(f"the endpoint {base} did not answer: {error or type(error).__name__}") from None
    if answer.status_code != httpx.codes.OK or not isinstance(explanation, dict) or "prompt_tokens" not in explanation:
        problem = explanation.get("error") if isinstance(explanation, dict) else None
        message = problem.get("message") if isinstance(problem, dict) else problem
        raise SkimError(f"the endpoint {base} answered {answer.status_code}: {message or 'it is no Skim endpoint'}")
    rendered, tokens = render(prompt, load_tokenizer(model)), explanation["prompt_tokens"]
    if rendered.size != tokens:
        raise SkimError(f"the prompt has {rendered.size} tokens for {model}, the request had {tokens}")
    return explanation, rendered


def _selected(speculator: Path, model: str, prompt: RenderedPrompt, flags: SelectionFlags) -> "PairSelection":
    """What the speculator keeps of a prompt in the tokens of `model`. Raises SkimError."""
    with Pair(
        speculator=speculator,
        engine=flags.engine,
        speculator_options=flags.start_options,
        prefill=flags.prefill,
        reads_for=model,
    ) as pair:
        return pair.select(prompt)


def read_prompt_file(path: Path, *, chat: bool) -> str | Messages:
    """The prompt of a file: text, or of a .json file the messages of a chat (a list, or an object with `messages`).

    chat: text is one user turn. Raises SkimError.
    """
    if path.suffix != ".json":
        return _as_chat(read_text(path), chat)
    messages = read_json(path)
    if isinstance(messages, Mapping):
        messages = messages.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, Mapping) for one in messages):
        raise SkimError(f"{path} must hold a list of chat messages, or an object with `messages`")
    return messages


def _as_chat(text: str, chat: bool) -> str | Messages:
    return [{"role": "user", "content": text}] if chat else text


def highlight_kept(pieces: list[str], positions: np.ndarray, first: int = 0, last: int | None = None) -> Text:
    """Token texts `pieces[first:last]` as one rich Text, kept ones bold on colour, dropped ones dim."""
    kept = set(np.asarray(positions).tolist())
    numbered = list(enumerate(pieces))[first:last]
    return Text.assemble(*((text, "bold black on bright_green" if i in kept else "dim") for i, text in numbered))
