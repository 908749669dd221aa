"""`skim select`: a speculator in this process, to look at what it keeps."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from cluster.commands.grouped import grouped
from cluster.commands.selection_flags import SelectionFlags
from cluster.in_process.pair import Pair
from cluster.in_process.prompts import as_token_ids, render
from cluster.json_file import read_json, read_text
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import SkimError
from skim_common.models.info import load_tokenizer


@grouped
def select(
    speculator: Annotated[Path, typer.Option(metavar="MODEL", help="Speculator: a folder, or owner/name@revision.")],
    target: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Target whose tokens are selected, if its tokenizer is another one."),
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Prompt as text.")] = None,
    prompt_ids: Annotated[Path | None, typer.Option(metavar="FILE", help="Prompt as a JSON list of token ids.")] = None,
    chat: Annotated[bool, typer.Option(help="Wrap the text as one user turn of the chat template.")] = False,
    *,
    flags: SelectionFlags,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Run only the speculator and see what it keeps of a prompt."""
    model, prefill, options = str(target or speculator), flags.prefill, flags.start_options
    prompt = read_prompt(model, prompt_file, prompt_ids, chat=chat)
    with Pair(
        speculator=speculator, engine=flags.engine, speculator_options=options, prefill=prefill, reads_for=model
    ) as pair:
        selected = pair.select(prompt)
    kept, tokenizer = selected.kept, load_tokenizer(model)
    console = Console(highlight=False)
    console.print(highlight_kept([tokenizer.decode([i]) for i in prompt.token_ids.tolist()], kept.positions))
    assert selected.coverage is not None
    console.print(
        f"\nkept {kept.token_ids.size} of {kept.context_length} tokens "
        f"({kept.token_ids.size / kept.context_length:.1%}), {selected.coverage:.1%} of the importance"
    )
    if json_file is not None:
        selected.save(json_file)
        Console(stderr=True, highlight=False).print(f"Wrote {json_file}", markup=False, soft_wrap=True)


def read_prompt(model: str, text_file: Path | None, ids_file: Path | None, *, chat: bool) -> RenderedPrompt:
    """The prompt from a text file or a JSON list of token ids, as `skim.Pair` reads it. Raises SkimError."""
    if (text_file is None) == (ids_file is None):
        raise SkimError("give the prompt by either --prompt-file or --prompt-ids")
    if ids_file is not None:
        return RenderedPrompt(as_token_ids(_read_ids(ids_file)))
    assert text_file is not None
    text = read_text(text_file)
    return render([{"role": "user", "content": text}] if chat else text, load_tokenizer(model))


def _read_ids(file: Path) -> list[int]:
    """A prompt's token ids. Raises SkimError."""
    ids = read_json(file)
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise SkimError(f"{file} must hold a JSON list of token ids, for example [1, 17, 4]")
    return ids


def highlight_kept(pieces: list[str], positions: np.ndarray, first: int = 0, last: int | None = None) -> Text:
    """Token texts `pieces[first:last]` as one rich Text, kept ones bold on colour, dropped ones dim."""
    kept = np.zeros(len(pieces), bool)
    kept[positions] = True
    text = Text()
    for piece, is_kept in zip(pieces[first:last], kept[first:last], strict=True):
        text.append(piece, style="bold black on bright_green" if is_kept else "dim")
    return text
