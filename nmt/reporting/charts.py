"""Line charts as SVG, for a page without scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 38


class Series(NamedTuple):
    """One line of a chart.

    Attributes:
        name: name for the legend.
        points: pairs of step and value, in the order of the steps.
        color: color of the line.
        dashed: whether the line is dashed.
    """

    name: str
    points: Sequence[tuple[int, float]]
    color: str
    dashed: bool = False


def chart(title: str, series: Sequence[Series], log: bool = False) -> str:
    """Return an HTML figure with a chart; empty if no series has a finite point.

    Args:
        title: title, with the unit.
        series: the lines.
        log: whether the vertical axis is logarithmic; values that are not positive are then left out.
    """
    fits: Callable[[float], bool] = (lambda y: math.isfinite(y) and y > 0) if log else math.isfinite
    lines = [line._replace(points=[(x, y) for x, y in line.points if fits(y)]) for line in series]
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    steps = [x for line in lines for x, _ in line.points]
    values = [y for line in lines for _, y in line.points]
    ticks = log_ticks(min(values), max(values)) if log else linear_ticks(min(values), max(values))
    across, up = _Axis(min(steps), max(steps)), _Axis(min(ticks), max(ticks), log)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">']
    for tick in ticks:
        y = _BOTTOM_EDGE - up.share(tick) * _TALL
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in linear_ticks(min(steps), max(steps)):
        if min(steps) <= tick <= max(steps):
            x = _LEFT + across.share(tick) * _WIDE
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">step</text>')
    for line in lines:
        places = [(_LEFT + across.share(x) * _WIDE, _BOTTOM_EDGE - up.share(y) * _TALL, x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in places)
        dashes = ' stroke-dasharray="5 3"' if line.dashed else ""
        parts.append(f'<polyline points="{path}" stroke="{line.color}"{dashes}/>')
        for x, y, step, value in places if len(places) <= 60 else places[-1:]:
            told = html.escape(f"{line.name}, step {step}: {value:g}")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{line.color}"><title>{told}</title></circle>'
            )
    faint = {False: "", True: ";opacity:.5"}
    legend = " ".join(
        f'<span><i style="background:{line.color}{faint[line.dashed]}"></i>{html.escape(line.name)}</span>'
        for line in lines
    )
    figure = "\n".join([*parts, "</svg>"])
    return f"<figure><figcaption>{html.escape(title)}</figcaption>\n{figure}\n<p class=legend>{legend}</p></figure>"


_WIDE, _TALL, _BOTTOM_EDGE = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM, _HEIGHT - _BOTTOM


class _Axis:
    """An axis from `low` to `high`."""

    def __init__(self, low: float, high: float, log: bool = False) -> None:
        self._log = log
        self._low, self._high = self._at(low), self._at(high)

    def _at(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def share(self, value: float) -> float:
        """Return the place of a value on the axis, 0 to 1; 0.5 on an axis of one value."""
        length = self._high - self._low
        return (self._at(value) - self._low) / length if length else 0.5


def linear_ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers whose range has both values.

    >>> linear_ticks(0, 41.2)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    """
    span = high - low or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span))
    step = next(size * factor for factor in (0.2, 0.5, 1.0, 2.0) if span / (size * factor) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten, or 1, 2 and 5 times these, whose range has both values.

    >>> log_ticks(3, 900)
    [1.0, 10.0, 100.0, 1000.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    least = max((tick for tick in ticks if tick <= low), default=ticks[0])
    most = min((tick for tick in ticks if tick >= high), default=ticks[-1])
    return [tick for tick in ticks if least <= tick <= most]
