"""Models on this machine: in the cache of the hub's client, and in folders that a user names."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from skim_common.errors import SkimError

CONFIG = "config.json"


@dataclass(frozen=True)
class Candidate:
    """name: how a user names the model. folder: where its files are."""

    name: str
    folder: str


def in_cache() -> list[Candidate]:
    """The models of the hub's cache, in the revision `main` if the cache has it, else in the newest one it has."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    found = []
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        revisions = [r for r in repository.revisions if CONFIG in {file.file_name for file in r.files}]
        if repository.repo_type == "model" and revisions:
            newest = max(revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
            revision = "" if "main" in newest.refs else f"@{newest.commit_hash}"
            found.append(Candidate(repository.repo_id + revision, str(newest.snapshot_path)))
    return found


def in_folders(folders: Iterable[Path]) -> list[Candidate]:
    """The models in `folders`: each is a model's folder, or holds such folders. Raises SkimError if one has none."""
    found = []
    for folder in folders:
        models = [folder] if (folder / CONFIG).exists() else sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
        if not models:
            raise SkimError(f"--among {folder}: there is no {CONFIG}, neither in this folder nor in the folders in it")
        found += [Candidate(str(model), str(model.resolve())) for model in models]
    return found
