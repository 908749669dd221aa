"""Where a model is: a folder, or a repository of a model hub as `owner/name` with an optional `@revision`.

`huggingface_hub` alone speaks to the hub, so its cache, file locks and environment variables hold here too.
"""

import os
import re  # noqa: TID251  names of models in settings
from functools import partial
from pathlib import Path
from typing import Any

from skim_common.errors import ModelError, one_line

PYTORCH_WEIGHTS = "SKIM_PYTORCH_WEIGHTS"
"""Environment variable. With the value 1, a repository without safetensors may give PyTorch's pickle files (*.bin)."""

_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[^@\s]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "vocab.*")
"""Config, tokenizer, chat template, and the index of the weights: kilobytes to a few megabytes."""
_IGNORED = ("*/*", "consolidated*")
"""Sub-folders, and a second copy of the weights in the format of their author's own tools."""


def is_hub_name(model: str, base: Path | None = None) -> bool:
    """Whether `model` names a repository. An existing folder of that name wins; a relative one starts at `base`."""
    return _NAME.fullmatch(model) is not None and not (base or Path()).joinpath(model).exists()


def is_within_reach(model: str) -> bool:
    """Whether `model` is a hub name or a folder on this machine. A deployment can have folders on other machines."""
    return is_hub_name(model) or Path(model).exists()


def located(model: str, base: Path) -> str:
    """A hub name as it is; a folder as an absolute path, where a relative one starts at `base`."""
    return model if is_hub_name(model, base) else str((base / os.path.expanduser(model)).resolve())


def public_name(model: str) -> str:
    """The name that clients see: of a repository `owner/name`, of a folder its last part."""
    return _split(model)[0] if is_hub_name(model) else Path(model).name


def local_folder(model: str, *, weights: bool) -> str:
    """The folder with the model's files. Those of a repository are downloaded first, unless they are in the cache;
    without `weights`, only kilobytes. Raises ModelError if the repository or its files cannot be had.
    """
    if not is_hub_name(model):
        return model
    if not weights:
        return _download(model, _SMALL, quiet=True)
    folder = _download(model, (*_SMALL, "*.safetensors"))
    if any(Path(folder).glob("*.safetensors")):
        return folder
    if os.environ.get(PYTORCH_WEIGHTS) != "1":
        raise ModelError(
            f"model {model}: the repository has no weights in safetensors; set {PYTORCH_WEIGHTS}=1 to use its pickle "
            "files (*.bin), if you trust their author"
        )
    folder = _download(model, (*_SMALL, "*.bin"))
    if any(Path(folder).glob("*.bin")):
        return folder
    raise ModelError(f"model {model}: the repository has no weights, neither *.safetensors nor *.bin")


def weight_bytes(folder: str) -> int:
    """The size of the weights in a model's folder: safetensors, else PyTorch's pickle files."""
    files = [*Path(folder).glob("*.safetensors")] or Path(folder).glob("*.bin")
    return sum(file.stat().st_size for file in files)


def pinned(model: str) -> str:
    """A hub name with its revision's commit, so that all machines read the same files; a folder as it is. Raises
    ModelError as `local_folder`."""
    if not is_hub_name(model) or _COMMIT.fullmatch(_split(model)[1] or ""):
        return model
    # The cache has a folder for each commit, with the commit as its name.
    return f"{_split(model)[0]}@{Path(local_folder(model, weights=False)).name}"


def _split(model: str) -> tuple[str, str | None]:
    repository, _, revision = model.partition("@")
    return repository, revision or None


def _download(model: str, patterns: tuple[str, ...], *, quiet: bool = False) -> str:
    """The cache's folder of the repository, with all its files that match. quiet: without progress bars."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm

    repository, revision = _split(model)
    fetch = partial(snapshot_download, allow_patterns=list(patterns), ignore_patterns=list(_IGNORED))

    class Hidden(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **(kwargs | {"disable": True}))  # type: ignore[no-untyped-call]

    try:
        return str(fetch(repository, revision=revision, tqdm_class=Hidden if quiet else None))
    except Exception as error:  # many kinds, of huggingface_hub, of its HTTP client and of the file system
        raise ModelError(f"model {model}: {_reason(error, repository, revision)}") from None


def _reason(error: Exception, repository: str, revision: str | None) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "the repository is gated: ask for access on its page, then set HF_TOKEN to a token of that account"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"there is no folder of this name, and the hub shows no repository {repository}: correct the name, or set "
            "HF_TOKEN if the repository is private"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {revision or 'main'}"
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code == 401:
        return "the hub refuses the token: correct or remove HF_TOKEN (or the token that `hf auth login` saved)"
    if isinstance(error, errors.LocalEntryNotFoundError):
        cause = one_line(error.__cause__ or error)
        return (
            f"some of its files are not in the cache, and the hub cannot be reached ({cause}): check the network, the "
            "proxy, HF_ENDPOINT and HF_HUB_OFFLINE, or set HF_HOME to a cache that has them"
        )
    if isinstance(error, errors.HFValidationError):
        return f"this is no name of a repository ({one_line(error)})"
    return f"the download stopped ({one_line(error)}): run the same command again; it goes on where it stopped"
