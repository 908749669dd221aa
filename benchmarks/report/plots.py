"""The style of all plots: white background, readable at the width of a README, suitable for colour-blind readers.

The `plot(result, path)` of a benchmark draws into the axes that `figure` gives; matplotlib's global state is never
changed. The colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/); series also differ by marker.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skim_common.errors import SkimError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SOURCE = "Source"
"""Name of the PNG text chunk that holds the digest of the drawn result."""

_STYLE: dict[Any, Any] = {  # matplotlib's type for the keys lists every setting
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "lines.linewidth": 2,
    "lines.markersize": 6,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


@contextmanager
def figure(
    path: Path, result: Mapping[str, Any], *, panels: int = 1, rows: int = 1, height: float = 4.0
) -> Iterator[list[Any]]:
    """Give matplotlib Axes to draw into, and save the figure at `path` afterwards (PNG, 1600 pixels wide).

    result: the drawn result; its digest is stored in the file (`source_of`). panels: Axes side by side. rows: rows of
    Axes; the list holds them row by row. height: in inches, at a width of 10 inches.
    Raises SkimError if matplotlib is missing or the file cannot be written.
    """
    require()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        drawing = Figure(figsize=(10, height), layout="constrained")
        axes = drawing.subplots(rows, panels, squeeze=False).ravel()
        for axis in axes:
            axis.set_prop_cycle(color=COLOURS, marker=MARKERS)
        yield list(axes)
        try:
            drawing.savefig(path, dpi=160, metadata={"Software": None, SOURCE: digest(result)})
        except OSError as error:
            raise SkimError(f"cannot write {path}: {error.strerror}") from None


def prompt_axis(axis: Any, lengths: Sequence[int]) -> None:
    """Make the x axis one of prompt lengths in tokens: logarithmic, with a tick at each length."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, labels=[_length_label(length) for length in lengths])
    axis.minorticks_off()
    axis.set_xlabel("prompt tokens")


def _length_label(length: int) -> str:
    """4k for 4,096, and 1.5k for 1,500."""
    if length < 1024:
        return str(length)
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length / 1000:.1f}k"


def log_values(axis: Any) -> None:
    """Make the y axis logarithmic, with plain numbers at its ticks."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")


def require() -> None:
    """Raise SkimError if matplotlib is not installed. Called before a measurement, so that its result is not lost."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SkimError("plots need matplotlib: pip install '.[bench]', or omit --plot") from None


def digest(result: Mapping[str, Any]) -> str:
    """The SHA-256 of a result's JSON, in hexadecimal. No plot shows the day, nor what has changed since (`older`)."""
    shown = {name: value for name, value in result.items() if name != "older"}
    if "machine" in shown:
        shown["machine"] = {name: value for name, value in shown["machine"].items() if name != "day"}
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def source_of(path: Path) -> str | None:
    """The digest of the result that the plot at `path` shows, or None if the file has none."""
    from PIL import Image

    with Image.open(path) as image:
        return image.info.get(SOURCE)
