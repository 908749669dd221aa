"""The `skim` command line. Each command imports what it needs when it runs, so that --help answers at once."""

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.markup import escape

from cluster.commands import config as config_commands
from cluster.commands.flags import KeepRate, keep_rate_value
from cluster.commands.keys import app as key_commands
from cluster.commands.lazy import lazy_group
from cluster.commands.output import print_line, progress
from cluster.commands.plan import app as plan_commands
from skim_common.errors import SkimError
from skim_common.proxies import call_directly

if TYPE_CHECKING:
    from cluster.config.schema import DeploymentConfig

SERVING = "Serving"
TOOLS = "One model at a time"

# Imported only when they are asked for. What stands above this folder is named here alone.
LAZY: dict[str | None, dict[str, str]] = {
    SERVING: {
        "demo": "demo_models.demo:demo",
        "batch": "cluster.batch.job:batch",
        "mcp": "cluster.commands.mcp:mcp",
    },
    TOOLS: {
        "explain": "cluster.commands.select:explain",
        "select": "cluster.commands.select:select",
        "bench": "benchmarks.commands:app",
        "eval": "evals.commands.evaluate:evaluate",
        "calibrate": "evals.commands.calibrate:calibrate",
        "heads": "evals.commands.heads:heads",
        "models": "evals.commands.models:app",
    },
}

app = typer.Typer(
    name="skim",
    cls=lazy_group(LAZY),
    help="Serve long prompts fast: a small speculator skims the prompt, the big target reads only what matters.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(config_commands.app, name="config", rich_help_panel="Deployment files")
app.command(rich_help_panel="Deployment files")(config_commands.manifests)
app.add_typer(plan_commands, name="plan", rich_help_panel="Deployment files")
app.add_typer(key_commands, name="keys", rich_help_panel=SERVING)
_shows_traces = False
"""Set by `--verbose`."""

# The terminal is for the user: Ray and Serve log to files, vLLM, torch and gRPC say only errors. Read when imported.
QUIET = {
    "GRPC_VERBOSITY": "ERROR",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

Model = Annotated[
    Path | None, typer.Option(metavar="MODEL", help="Model: a folder (Hugging Face layout), or owner/name@revision.")
]


def main() -> NoReturn:
    """Entry point: a user's mistake is one line on stderr and exit code 2, any other error one line and exit code 1."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    call_directly()
    try:
        app()
    except SkimError as error:
        _print_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        named = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        _print_error(error, f"an unexpected error ({named}) ended this; `skim --verbose` shows where it was")
        sys.exit(1)
    sys.exit(0)


def _print_error(error: Exception, sentence: str = "") -> None:
    """sentence: the error's own text by default."""
    if _shows_traces:
        traceback.print_exception(error)
    progress.print(f"[bold red]skim:[/] {escape(sentence or str(error))}", soft_wrap=True)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"skim {version('skim-serve')}")
        raise typer.Exit


@app.callback()
def skim(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, help="Print the version and leave.", is_eager=True)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the Python trace of an error.")] = False,
) -> None:
    global _shows_traces
    _shows_traces = verbose


@app.command(
    rich_help_panel=SERVING,
    context_settings={"ignore_unknown_options": True},
    epilog="After these, every flag of `vllm serve` as vLLM has it (`vllm serve --help=all`): for the target and the "
    "endpoint as --FLAG, for the speculator as --speculator.FLAG.",
)
def serve(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL|CONFIG.yaml FLAGS",
            help="The target, or a deployment file; then flags of `vllm serve`.",
        ),
    ] = None,
    target: Model = None,
    speculator: Model = None,
    engine: Annotated[str | None, typer.Option(help="Engine of both pools: vllm or mock.")] = None,
    keep_rate: KeepRate = None,
    look_ahead: Annotated[int | None, typer.Option(help="Tokens decoded ahead whose queries score, 0 to 64.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(help="GPUs (or CPU sockets) per target replica.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    select_only: Annotated[
        bool | None, typer.Option("--select-only", help="No target: MODEL is the speculator, for /v1/select alone.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster to join; 'auto' is the one on this machine. Default: a new one."),
    ] = None,
) -> None:
    """Serve an OpenAI-compatible endpoint until Ctrl-C, and say which parts go down and come back.

    Give a target and --speculator, or a deployment file; flags override the file. A model is a folder or a name on the
    hub, as owner/name or owner/name@revision.
    """
    from cluster.commands.serve_flags import read_words
    from cluster.config.load import config_from_flags

    what, flags = read_words(words or [], [flag for option in ctx.command.params for flag in option.opts])
    config = Path(what) if what is not None and what.endswith((".yaml", ".yml")) else None
    models = {"target": target, "speculator": speculator}
    if what is not None and config is None:
        name = "speculator" if select_only else "target"
        if models[name] is not None:
            raise SkimError(f"the {name} is given twice: {what} and --{name} {models[name]}; keep one of them")
        models[name] = Path(what)
    # The file's target, and options of vLLM that other engines do not know.
    emptied = ["target"] if select_only else []
    emptied += ["target.engine_options", "speculator.engine_options"] if engine not in (None, "vllm") else []
    settings = {
        "target.model": models["target"],
        "target.tensor_parallel": tensor_parallel,
        "target.engine": None if select_only else engine,
        "speculator.model": models["speculator"],
        "speculator.engine": engine,
        "selection.keep_rate": keep_rate_value(keep_rate),
        "selection.look_ahead": look_ahead,
        "router.host": host,
        "router.port": port,
        "router.select_only": select_only,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    deployment = config_from_flags(config, {**{name: {} for name in emptied}, **flags, **given})
    from cluster.serve.front_process import begin_check

    begin_check(deployment)  # it runs beside these imports
    from cluster.serve.deployment import deployed
    from cluster.serve.status import RayGoneError, watch

    progress.print(f"Starting [bold]{deployment.served_model_name}[/]: {', '.join(deployment.pools)}, router")
    try:
        with deployed(deployment, address=address, progress=_print_state) as url:
            stop = threading.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                # Only now: starting Ray installs handlers of its own.
                signal.signal(number, lambda *_: stop.set())
            _announce(url, deployment, " (Ctrl-C stops it)")
            watch(stop, _print_state)
            progress.print("Stopping: running answers are finished first")
    except RayGoneError as error:
        _print_error(error)
        raise typer.Exit(1) from None


@app.command(rich_help_panel=SERVING)
def deploy(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Deployment file.")],
    address: Annotated[str, typer.Option(help="The Ray cluster; 'auto' is the one on this machine.")] = "auto",
) -> None:
    """Put a deployment on a running Ray cluster and leave it there; again, to change it without a failed request.

    `serve shutdown` takes it down.
    """
    from cluster.config.load import load_config
    from cluster.serve.front_process import begin_check

    deployment = load_config(config)
    begin_check(deployment)  # it runs beside these imports
    from cluster.serve.deployment import deploy

    _announce(deploy(deployment, address, progress=_print_state), deployment)


@app.command(rich_help_panel=SERVING)
def status(
    address: Annotated[str, typer.Option(help="The Ray cluster; 'auto' is the one on this machine.")] = "auto",
) -> None:
    """Say of each pool and of the router what runs, and why a pool is down; exit code 1 if one is."""
    import ray

    from cluster.serve.ray_cluster import join_ray
    from cluster.serve.status import running_parts

    join_ray(address)
    try:
        parts = running_parts(address)
    finally:
        ray.shutdown()
    for part in parts:
        print_line(part.line)
    if any(part.reason for part in parts):
        raise typer.Exit(1)


def _print_state(line: str) -> None:
    progress.print(f"  {line}", markup=False, soft_wrap=True)


def _announce(url: str, config: "DeploymentConfig", how_it_stops: str = "") -> None:
    chat = "chat/completions", {"messages": [{"role": "user", "content": "..."}]}
    path, fields = ("select", {"text": "...", "question": "..."}) if config.router.select_only else chat
    body = json.dumps({"model": config.served_model_name, **fields})
    progress.print(f"\nReady at [bold]{url}/v1[/]{how_it_stops}\n")
    curl = f"  curl {url}/v1/{path} -H 'content-type: application/json' \\\n    -d '{body}'\n"
    progress.print(curl, markup=False, soft_wrap=True)
