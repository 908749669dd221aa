"""Where pods find the files and folders that the options of the pools name: on the models' volume, or nowhere."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from cluster.config.paths import PATHS, with_paths
from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import WRITABLE, Object
from skim_common.errors import SkimError

NO_FILES = frozenset({
    "api_key", "default_chat_template_kwargs", "disable_access_log_for_endpoints", "fingerprint_value",
    "reasoning_config", "root_path",
})  # fmt: skip
"""Engine options with texts that may begin like a path: parts of URLs, secrets, and words for a template or a model."""

_BEGINNINGS = ("/", "./", "../", "~", "file:")


class PodPaths:
    """The paths of one deployment in its pods. A path that is not on the models' volume is looked up there by its name,
    so two of the same name would be one.
    """

    def __init__(self, config: DeploymentConfig) -> None:
        self._volume = PurePosixPath(config.kubernetes.models.mount_path)
        self._known = [str(self._volume), config.kubernetes.hub.mount_path, *WRITABLE.values(), "/dev/shm"]
        self._sources: dict[str, tuple[str, str]] = {}

    def put_into(self, name: str, pool: Object) -> None:
        """Replace the paths in the settings of a pool. name: of its section, such as `target`.

        Raises SkimError that names the option, for a path that pods cannot have.
        """
        pool["model"] = self._read(f"{name}.model", pool["model"])
        begin = f"{name}.engine_options."
        pool["engine_options"] = with_paths(pool["engine_options"], lambda key, path: self._path(begin, key, path))
        for option, value in pool["engine_options"].items():
            unknown = [
                text for text in _texts(value) if text.startswith(_BEGINNINGS) and not _inside(text, self._known)
            ]
            if unknown and option not in NO_FILES:
                raise SkimError(
                    f"{begin}{option}: pods do not have {unknown[0]}: put it on the volume of the models and write its "
                    f"path there, under {self._volume}, or leave the option out"
                )

    def _path(self, begin: str, key: str, path: str) -> str:
        if PATHS[key] != "written":
            return self._read(begin + key, path)
        if not _inside(path, WRITABLE.values()):
            raise SkimError(
                f"{begin}{key}: pods cannot write to {path}: name a place in {' or '.join(WRITABLE.values())}, "
                "or leave the option out"
            )
        return path

    def _read(self, option: str, path: str) -> str:
        if not path.startswith("/"):  # a hub name, or one of vLLM's own templates
            return path
        place = path if _inside(path, [str(self._volume)]) else str(self._volume / PurePosixPath(path).name)
        other, source = self._sources.setdefault(place, (option, path))
        if source != path:
            raise SkimError(
                f"{other} and {option}: both would be {place} in the pods: give the folders different names"
            )
        return place


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value of plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for one in value.values() for text in _texts(one))
    elif isinstance(value, list | tuple):
        yield from (text for one in value for text in _texts(one))
