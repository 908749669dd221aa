"""The answer of `skim plan size` as one HTML page with its curves. The page needs no other file."""

import io
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

from cluster.plan.pools import Load
from cluster.plan.size import Sizer
from skim_common.errors import SkimError

SHORTEST = 512
"""Tokens of the shortest prompt in the curve."""
LOADS = tuple(2.0**power for power in range(-4, 5))
"""Multiples of the planned load."""
STYLE = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}svg{max-width:100%;height:auto}"


def first_tokens(sizer: Sizer, load: Load, result: dict[str, Any]) -> list[tuple[int, float, float]]:
    """(prompt tokens, seconds with plain vLLM, seconds with Skim) to the first token of a prompt without other load.

    result: as in `page`; the prompts run on the ranks of its two plans, on one GPU each where there is none.
    """
    pools = (("skim", "target"), ("skim", "speculator"), ("plain", "target"))
    ranks = [result[plan][pool]["tensor_parallel"] if result[plan] else 1 for plan, pool in pools]
    most = min(sizer.target.size.positions, sizer.speculator.size.positions)
    lengths = [SHORTEST * 2**power for power in range(32) if SHORTEST * 2**power <= most]
    return [(tokens, *sizer.first_alone(load, tokens, *ranks)) for tokens in lengths]


def gpus_over_load(sizer: Sizer, load: Load, drafts: int | None = None) -> list[tuple[float, int | None, int | None]]:
    """(prompts per second, GPUs of plain vLLM, GPUs of Skim) that keep the SLOs. None: no number does.

    drafts: as in `Sizer.skim`.
    """
    found = []
    for times in LOADS:
        of = replace(load, qps=times * load.qps)
        plain, skim = sizer.plain(of), sizer.skim(of, drafts)
        found.append((of.qps, plain.gpus if plain else None, skim.gpus if skim else None))
    return found


def page(
    result: dict[str, Any],
    text: str,
    firsts: Sequence[tuple[int, float, float]],
    gpus: Sequence[tuple[float, int | None, int | None]],
) -> str:
    """The page. result: `cluster.plan.report.answer`. text: what the command prints. Raises SkimError."""
    return framed(result, "", [_curves(result, firsts, gpus), f"<pre>{escape(text)}</pre>"])


def framed(result: dict[str, Any], what: str, parts: Sequence[str]) -> str:
    """A page with the verdict of `result` and these parts. what: the end of its title."""
    title = f"Skim: {result['target']} with {result['speculator']} on {result['gpu']['name']}{what}"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    verdict = f"<p><strong>{escape(result['verdict'])}</strong></p>"
    return "\n".join([head, f"<h1>{escape(title)}</h1>", verdict, *parts, "</html>"])


def _curves(
    result: dict[str, Any],
    firsts: Sequence[tuple[int, float, float]],
    gpus: Sequence[tuple[float, int | None, int | None]],
) -> str:
    """An SVG of both curves; the background is grey where Skim does not pay."""
    figure = new_figure(4)
    left, right = figure.subplots(1, 2)
    tokens, plain, skim = zip(*firsts, strict=True)
    left.plot(tokens, plain, marker="o", label="plain vLLM")
    left.plot(tokens, skim, marker="o", label="Skim")
    later = [length for length, dense, selected in firsts if selected >= dense]
    if later:
        left.axvspan(tokens[0] / 1.2, result["pays_from_tokens"] or tokens[-1] * 1.2, color="0.9", zorder=0)
    left.set(xscale="log", yscale="log", xlabel="tokens of a prompt", ylabel="seconds to the first token, alone")
    for place, name in ((1, "plain vLLM"), (2, "Skim")):
        known = [(row[0], row[place]) for row in gpus if row[place] is not None]
        if known:
            right.plot(*zip(*known, strict=True), marker="o", drawstyle="steps-pre", label=name)
    for qps, of_plain, of_skim in gpus:
        if of_skim is None or (of_plain is not None and of_plain <= of_skim):
            right.axvspan(qps / 2**0.5, qps * 2**0.5, color="0.9", zorder=0)
    right.axvline(result["load"]["qps"], color="0.5", linestyle=":")
    right.set(xscale="log", yscale="log", xlabel="prompts per second", ylabel="GPUs that keep the SLOs")
    for axes in (left, right):
        axes.legend()
        axes.set_title("grey: Skim does not pay", fontsize="small", loc="left")
    return svg_of(figure)


def new_figure(height: float) -> Any:
    """An empty figure of so many inches. Raises SkimError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SkimError("--page draws with matplotlib: pip install '.[bench]'") from None
    return Figure(figsize=(11, height), layout="constrained")


def svg_of(figure: Any) -> str:
    """The drawing, without what only a file of its own needs."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue()
    return svg[svg.index("<svg") :]
