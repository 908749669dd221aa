"""What the commands of `skim plan` are asked: the models, the GPU, the SLOs, the files to write."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from cluster.json_file import write_json
from skim_common.errors import SkimError

if TYPE_CHECKING:
    from cluster.config.schema import DeploymentConfig
    from cluster.plan.size import Sizer

console = Console(highlight=False)

File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A deployment file with both models.")]
Target = Annotated[Path | None, typer.Option(metavar="MODEL", help="Target: a folder, or owner/name.")]
Speculator = Annotated[Path | None, typer.Option(metavar="MODEL", help="Speculator.")]
GpuName = Annotated[str, typer.Option(help="a100, l40s, h100, h200 or b200.")]
Prompt = Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")]
Answer = Annotated[int, typer.Option(min=1, help="Tokens of an answer.")]
KeepRate = Annotated[
    float | None,
    typer.Option(min=0.001, max=1.0, help="Share of the prompt to keep. Default: that of the file, or of `auto`."),
]
WeightBits = Annotated[float, typer.Option(min=1, max=32, help="Bits of a stored weight of both models.")]
KvBits = Annotated[float, typer.Option(min=1, max=32, help="Bits of a number in the KV caches.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")]
PageFile = Annotated[
    Path | None, typer.Option("--page", metavar="FILE.html", help="Write the result and its curves as one HTML page.")
]


@dataclass(frozen=True)
class Inputs:
    """The models on their GPU, the share to keep (None: what the default keeps), and the deployment file, if there is
    one."""

    sizer: "Sizer"
    keep_rate: float | None
    config: "DeploymentConfig | None"

    def check_positions(self, tokens: int, options: str) -> None:
        """Raises SkimError if a model cannot read so many tokens. options: those that ask for them.

        In windows, a speculator reads any number.
        """
        for model in (self.sizer.target, *([] if self.sizer.windows else [self.sizer.speculator])):
            if tokens > model.size.positions:
                raise SkimError(
                    f"model {model.name} has {model.size.positions} positions: {options} are {tokens};"
                    " make them shorter"
                )

    def calibrated(self, address: str) -> "Sizer":
        """The sizer with the speeds of the running deployment on the Ray cluster at `address`. Raises SkimError."""
        from cluster.commands.top import scrape_cluster
        from cluster.plan.calibrate import METRICS, calibrated

        if self.config is None:
            raise SkimError("--calibrate needs the deployment file of what runs: give FILE")
        pools = {"target": self.config.target, "speculator": self.config.speculator}
        ranks = {name: pool.tensor_parallel for name, pool in pools.items()}
        found = calibrated(scrape_cluster(address, METRICS), self.sizer.gpu, ranks)
        for pool, share in found.shares(self.sizer.gpu).items():
            print_line(
                f"Measured: the {pool} reaches {100 * share:.2g}% of the peak of {self.sizer.gpu.name} when it reads"
            )
        return replace(self.sizer, machine=found.target, speculator_machine=found.speculator)


def read_inputs(
    file: Path | None,
    target: Path | None,
    speculator: Path | None,
    gpu: str,
    keep_rate: float | None,
    weight_bits: float,
    kv_bits: float,
) -> Inputs:
    """The command line has precedence over the file. Raises SkimError."""
    from cluster.config.load import load_config
    from cluster.plan.engine import Model
    from cluster.plan.gpus import Machine, gpu_named
    from cluster.plan.size import Sizer
    from skim_common.models.source import located

    chosen = gpu_named(gpu)
    own = [located(str(model), Path.cwd()) if model else None for model in (target, speculator)]
    rate, windows, config = keep_rate, True, load_config(file) if file else None
    if config is not None:
        own = [given or pool.model for given, pool in zip(own, (config.target, config.speculator), strict=True)]
        rate = keep_rate or config.selection.fixed_rate
        windows = config.selection.for_prompt(windows=True).read == "windows"
    if own[0] is None or own[1] is None:
        raise SkimError("give a deployment file, or both --target and --speculator")
    models = (Model.load(own[0]), Model.load(own[1]))
    sizer = Sizer(*models, chosen, Machine.of(chosen), weight_bits, kv_bits, windows=windows)
    return Inputs(sizer, rate, config)


def write_files(
    result: dict[str, Any],
    show: Callable[[], None],
    json_file: Path | None,
    page_file: Path | None,
    page: Callable[[str], str],
) -> None:
    """Print the answer and write the files that are wanted. page: the HTML page around the printed text. Raises
    SkimError."""
    show()
    if json_file is not None:
        write_json(json_file, result)
        print_line(f"Wrote {json_file}")
    if page_file is not None:
        with console.capture() as shown:
            show()
        text = page(shown.get())
        try:
            page_file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SkimError(f"cannot write {page_file}: {error.strerror}") from None
        print_line(f"Wrote {page_file}")


def table_of(columns: dict[str, Any]) -> Table:
    """An empty table with a first column of names, and these."""
    return Table("", *(Column(name, justify="right") for name in columns), box=SIMPLE_HEAD, pad_edge=False)


def print_line(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
