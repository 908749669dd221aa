"""Where pods find the files and folders that the options of the pools name: on the models' volume."""

from pathlib import PurePosixPath

from cluster.config.paths import with_paths
from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import Object
from skim_common.errors import SkimError


class PodPaths:
    """The paths of one deployment in its pods. A path that is not on the models' volume is looked up there by its name,
    so two of the same name would be one.
    """

    def __init__(self, config: DeploymentConfig) -> None:
        self._volume = PurePosixPath(config.kubernetes.models.mount_path)
        self._sources: dict[str, tuple[str, str]] = {}

    def put_into(self, name: str, pool: Object) -> None:
        """Replace the paths in the settings of a pool. name: of its section, such as `target`. Raises SkimError."""
        pool["model"] = self._read(f"{name}.model", pool["model"])
        begin = f"{name}.engine_options."
        pool["engine_options"] = with_paths(pool["engine_options"], lambda key, path: self._read(begin + key, path))

    def _read(self, option: str, path: str) -> str:
        if not path.startswith("/"):  # a hub name, or one of vLLM's own templates
            return path
        inside = PurePosixPath(path).is_relative_to(self._volume)
        place = path if inside else str(self._volume / PurePosixPath(path).name)
        other, source = self._sources.setdefault(place, (option, path))
        if source != path:
            raise SkimError(
                f"{other} and {option}: both would be {place} in the pods: give the folders different names"
            )
        return place
