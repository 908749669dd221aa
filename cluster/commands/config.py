"""Commands that only read a deployment file: `skim config check`, `skim config show` and `skim manifests`."""

from pathlib import Path
from typing import Annotated

import typer

from cluster.commands.output import print_line

app = typer.Typer(help="Check a deployment file, or show it with every default filled in.", no_args_is_help=True)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Deployment file.")]


@app.command()
def check(config: ConfigFile) -> None:
    """Check a deployment file, and whether its models fit together if they are on this machine or on the hub."""
    from cluster.config.load import load_config
    from cluster.serve.front_process import begin_check, check_front

    deployment = load_config(config)
    begin_check(deployment)
    from cluster.serve.preflight import absent_folders, check_models

    check_front(deployment)
    absent = absent_folders(deployment)
    notice = check_models(deployment) if not absent else None
    pools = (
        f"{name} {p.replicas if p.most_replicas == p.replicas else f'{p.replicas} to {p.most_replicas}'} x "
        f"{p.ranks} on {p.engine}"
        for name, p in deployment.pools.items()
    )
    print_line(f"{config} is valid: {', '.join([deployment.served_model_name, *pools])}")
    if notice:
        print_line(f"  {notice}")
    for model in absent:
        print_line(f"  {model} is not on this machine: the model was not checked")


@app.command()
def show(config: ConfigFile) -> None:
    """Print a deployment file with every default filled in, as equivalent YAML."""
    from cluster.config.load import as_yaml, load_config

    print(as_yaml(load_config(config)), end="")


def manifests(
    config: ConfigFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write to; created if missing.")
    ],
) -> None:
    """Write the deployment's Kubernetes objects for the KubeRay operator (docs/kubernetes.md)."""
    from cluster.config.load import load_config
    from cluster.kuberay.write import write_manifests
    from cluster.serve.preflight import with_pinned_models

    for file in write_manifests(with_pinned_models(load_config(config), print_line), output):
        print_line(f"Wrote {file}")
