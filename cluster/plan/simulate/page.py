"""A simulated day as one HTML page with its curves. The page needs no other file."""

from html import escape
from typing import Any

from cluster.plan.page import framed, new_figure, svg_of
from cluster.plan.simulate.compare import SYSTEMS


def day_page(result: dict[str, Any], text: str) -> str:
    """The page of a simulated day. result: `cluster.plan.simulate.compare.compare`. text: what
    the command prints. Raises SkimError."""
    figure = new_figure(9)
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    count = len(result["requests_per_second"])
    hours = [result["hours"] * point / count for point in range(count)]
    top.plot(hours, result["requests_per_second"], color="0.4")
    top.set(ylabel="requests per second", ylim=(0, None))
    for name, found in result["systems"].items():
        curves = found["curves"]
        middle.plot(hours, curves["within"], label=SYSTEMS[name])
        for pool, replicas in curves["replicas"].items():
            bottom.step(hours, replicas, where="post", label=f"{SYSTEMS[name]}: {pool}")
    middle.set(ylabel="share within the SLOs", ylim=(0, 1.02))
    bottom.set(ylabel="replicas", xlabel="hours", ylim=(0, None))
    for axes in (middle, bottom):
        axes.legend(fontsize="small")
    return framed(result, " for a day", [svg_of(figure), f"<pre>{escape(text)}</pre>"])
