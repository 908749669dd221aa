"""`skim keys`: makes API keys for the file of `router.api_keys_file`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.json_file import replace_text
from skim_common.errors import SkimError

app = typer.Typer(help="Make and replace API keys of an endpoint (SECURITY.md).", no_args_is_help=True)

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="The client's name; logs and limits use it.")]
File = Annotated[Path, typer.Option(metavar="FILE", help="The file of router.api_keys_file; created if missing.")]


@app.command()
def new(name: KeyName, file: File) -> None:
    """Print a new key, and add its hash to the file. An older key of the same name stays valid until `retire`."""
    from router.admission.api_keys import hash_of, new_key

    entries, key = _entries(file), new_key()
    entries.setdefault(name, {"name": name, "sha256": []})["sha256"].append(hash_of(key))
    _write(file, entries)
    print(key)


@app.command()
def retire(name: KeyName, file: File) -> None:
    """Make all keys of NAME invalid but the newest."""
    entries = _entries(file)
    if name not in entries:
        raise SkimError(f"{file} has no key with the name {name}")
    del entries[name]["sha256"][:-1]
    _write(file, entries)


def _entries(file: Path) -> dict[str, dict[str, Any]]:
    """The entries of the file by name; none if it does not exist. Raises SkimError."""
    from router.admission.api_keys import read_keys

    keys = read_keys(file) if file.exists() else []
    return {key.name: key.model_dump(mode="json", exclude_defaults=True) for key in keys}


def _write(file: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Replace the file at once: a router never reads half of it. Raises SkimError."""
    import yaml
    from pydantic import ValidationError

    from router.admission.api_keys import KeyFile
    from skim_common.validation import sentence

    content = {"keys": list(entries.values())}
    try:
        KeyFile.model_validate(content)
        replace_text(file, yaml.safe_dump(content, sort_keys=False), mode=0o600)
    except ValidationError as error:
        raise SkimError(sentence(error)) from None
    except OSError as error:
        raise SkimError(f"{file} cannot be written: {error.strerror}") from None
