"""All Kubernetes objects of a deployment, by file, and writing these files."""

from pathlib import Path

import yaml

from cluster.config.schema import DeploymentConfig
from cluster.kuberay.guards import disruption_budgets, network_policies
from cluster.kuberay.job import batch_job
from cluster.kuberay.monitoring import alert_rules, dashboard, pod_monitors
from cluster.kuberay.pods import Object
from cluster.kuberay.service import ray_service
from skim_common.errors import SkimError

HEADER = "# Written by `skim manifests`: change the deployment file, not this one.\n"


class _Readable(yaml.SafeDumper):
    """Writes multi-line text as a block and uses no anchors, so that diffs are readable."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


def manifests(config: DeploymentConfig) -> dict[str, list[Object]]:
    """Objects by file name. `kubectl apply -f DIR` applies all except jobs/, which a user starts one by one."""
    batch = config.kubernetes.batch
    files = {
        "network-policies.yaml": network_policies(config),
        "disruption-budgets.yaml": disruption_budgets(config),
        "pod-monitors.yaml": pod_monitors(config),
        "alert-rules.yaml": [alert_rules(config)],
        "dashboard.yaml": [dashboard(config)],
        "rayservice.yaml": [ray_service(config)],
        "jobs/batch.yaml": [batch_job(config, batch)] if batch else [],
    }
    return {name: objects for name, objects in files.items() if objects}


def write_manifests(config: DeploymentConfig, folder: Path) -> list[Path]:
    """Write all files under `folder`, and delete files of an earlier run that are now unused. Raises SkimError."""
    written = {folder / name: manifest_yaml(objects) for name, objects in manifests(config).items()}
    try:
        for file, text in written.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        for file in {*folder.glob("*.yaml"), *folder.glob("jobs/*.yaml")} - written.keys():
            if file.read_text(encoding="utf-8").startswith(HEADER):
                file.unlink()
    except OSError as error:
        raise SkimError(f"cannot write to {error.filename or folder}: {error.strerror}") from None
    return list(written)


def manifest_yaml(objects: list[Object]) -> str:
    return HEADER + yaml.dump_all(objects, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=120)
