"""Line charts for a page without scripts, drawn by matplotlib."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Series(NamedTuple):
    """One line of a chart.

    Attributes:
        name: name for the legend.
        points: pairs of step and value, in the order of the steps.
        color: number of its color.
        dashed: whether the line is dashed.
    """

    name: str
    points: Sequence[tuple[int, float]]
    color: int = 0
    dashed: bool = False


def chart(title: str, series: Sequence[Series], log: bool = False) -> str:
    """Return an HTML figure with a chart; empty if no series has a finite point, or without matplotlib.

    Args:
        title: title, with the unit.
        series: the lines.
        log: whether the vertical axis is logarithmic; values that are not positive are then left out.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    fits: Callable[[float], bool] = (lambda y: math.isfinite(y) and y > 0) if log else math.isfinite
    lines = [line._replace(points=[(x, y) for x, y in line.points if fits(y)]) for line in series]
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    figure = Figure(figsize=(5.8, 2.9), layout="constrained")
    axes = figure.add_subplot()
    for line in lines:
        style = "--" if line.dashed else "-"
        axes.plot(*zip(*line.points, strict=True), style, color=f"C{line.color}", marker=".")
    axes.set(xlabel="step", yscale="log" if log else "linear")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend([line.name.replace("$", r"\$") for line in lines], fontsize="small", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg")
    shown = f"data:image/svg+xml;base64,{base64.b64encode(picture.getvalue()).decode()}"
    return f'<figure><figcaption>{html.escape(title)}</figcaption><img alt="" src="{shown}"></figure>'
