"""Drawings as inline SVG: the report's, and those of a comparison's page.

A style sheet decides the colours, for light and dark: marks carry classes. Every name that reaches a drawing is
escaped; numbers are formatted here and hold no markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from undersong_server.report.data import Measure

COLOURS = 9  # named colours; whatever comes after them shares the last, grey one
WIDTH = 720
MOST_TICKS = 12  # labels below a chart of rounds or sums


def colour(index: int) -> int:
    """The colour number of the index-th name."""
    return min(index, COLOURS)


class Chart:
    """One drawing: a frame with a linear vertical scale from ``low`` to ``high``, and the marks that are added to it.

    Args:
        margins: left, right, top and bottom.
        tick: format of the figures at the five grid lines; "" draws none.
        percent: the grid lines' figures are shares, written in per cent.
    """

    def __init__(
        self,
        width: int,
        height: int,
        margins: tuple[int, int, int, int],
        high: float,
        *,
        low: float = 0.0,
        tick: str = "g",
        percent: bool = False,
    ) -> None:
        self.width, self.height = width, height
        self.left, right, self.top, bottom = margins
        self.right, self.bottom = width - right, height - bottom
        self._low, self._high = low, high
        self._parts: list[Markup] = []
        for value in np.linspace(low, high, 5) if tick else ():
            self.line("grid", self.left, self.right, self.y(value))
            label = f"{100 * value:{tick}} %" if percent else f"{value:{tick}}"
            self.text(self.left - 8, self.y(value) + 4, label, "tick end")

    def x(self, share: float) -> float:
        """The horizontal position of a share of the frame's width."""
        return self.left + (self.right - self.left) * share

    def y(self, value: float) -> float:
        """The vertical position of a value on the scale."""
        return self.top + (self.bottom - self.top) * (1 - (value - self._low) / (self._high - self._low))

    def add(self, markup: str, *values: Any) -> None:
        """Adds markup with values in it, which are escaped."""
        self._parts.append(Markup(markup).format(*values))  # noqa: S704 - the values are escaped

    def text(self, x: float, y: float, text: str, classes: str) -> None:
        self.add('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>', x, y, classes, text)

    def line(self, classes: str, x1: float, x2: float, y1: float, y2: float | None = None) -> None:
        """A line; a horizontal one without ``y2``."""
        y2 = y1 if y2 is None else y2
        self.add('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>', classes, x1, x2, y1, y2)

    def dot(self, classes: str, x: float, y: float, title: str) -> None:
        self.add('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3.6"><title>{}</title></circle>', classes, x, y, title)

    def across(self, ticks: Iterable[tuple[float, str]], title: str) -> None:
        """Labels below the frame, each at a share of its width, and what they count."""
        for share, label in ticks:
            self.text(self.x(share), self.height - 10, label, "tick middle")
        self.text((self.left + self.right) / 2, self.height + 6, title, "axis middle")

    def svg(self, description: str, *, below: int = 12) -> Markup:
        """The whole drawing, with ``below`` more rows of pixels than its height."""
        return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
            self.width, self.height + below, description, Markup("").join(self._parts)
        )


Points = Sequence[tuple[float, float] | None]  # a figure and half of its interval, 0 for none, at each tick


def series_chart(
    description: str,
    ticks: Sequence[str],
    series: Mapping[str, Points],
    *,
    axis: str = "",
    reference: tuple[float, str] | None = None,
    joined: bool = True,
    percent: bool = False,
    width: int = WIDTH,
    height: int = 300,
) -> Markup:
    """Figures of several names side by side, one colour per name; "" if there are none.

    Args:
        ticks: labels below the frame, from left to right; ``axis`` says what they count.
        reference: a figure that is marked by a line, and its name.
        joined: figures of a name are joined by a line, and the scale begins at 0; else each has a place of its own.
        percent: the figures are shares.
    """
    known = [point for points in series.values() for point in points if point is not None]
    if not known:
        return Markup("")
    low, high = min(mean - half for mean, half in known), max(mean + half for mean, half in known)
    room = 0.05 * ((high - low) or 1.0)
    low, high = (0.0, _ceiling(max(high, reference[0] if reference else 0.0))) if joined else (low - room, high + room)
    form = ".0f" if percent else "g" if joined else ".4g"
    chart = Chart(width, height, (56, 14, 16, 34), high, low=low, tick=form, percent=percent)
    stride = max(1, -(-len(ticks) // MOST_TICKS))
    chart.across((((at + 0.5) / len(ticks), ticks[at]) for at in range(0, len(ticks), stride)), axis)
    if reference is not None:
        chart.line("budget", chart.left, chart.right, chart.y(reference[0]))
        chart.text(chart.left + 4, chart.y(reference[0]) - 5, reference[1], "note strong")
    for rank, (name, points) in enumerate(series.items()):
        shift = 0.5 if joined else (rank + 1) / (len(series) + 1)
        marks = [
            (chart.x((at + shift) / len(ticks)), at, *point) for at, point in enumerate(points) if point is not None
        ]
        chart.add('<g class="series c{}">', colour(rank))
        if joined:
            chart.add('<polyline points="{}"/>', " ".join(f"{x:.1f},{chart.y(mean):.1f}" for x, _, mean, _ in marks))
        for x, at, mean, half in marks:
            shown = f"{100 * mean:.1f} %" if percent else f"{mean:.4g}" + (f" ± {half:.2g}" if half else "")
            chart.line("interval", x, x, chart.y(mean - half), chart.y(mean + half))
            chart.dot("", x, chart.y(mean), f"{name}, {ticks[at]}: {shown}")
        if len(series) > 1:
            chart.dot("", chart.left + 4, chart.height + 20 + 18 * rank, name)
        chart.add("</g>")
        if len(series) > 1:
            chart.text(chart.left + 14, chart.height + 24 + 18 * rank, name, "")
    return chart.svg(description, below=12 + 18 * len(series) * (len(series) > 1))


def gauge(measure: Measure, *, width: int = 220, height: int = 30) -> Markup:
    """A figure on its scale: a dot, its interval, the figure it is compared with, and the good side."""
    chart, y = Chart(width, height, (6, 6, 0, 0), 1.0, tick=""), 13

    def x(value: float) -> float:
        share = (value - measure.low) / (measure.high - measure.low) if measure.high > measure.low else 0.0
        return chart.x(min(1.0, max(0.0, share)))

    chart.line("track", chart.left, chart.right, y)
    described = f"{measure.name}: {measure.shown}, {measure.good_words}, scale {measure.scale}"
    if np.isfinite(measure.mark):
        chart.add('<path class="mark" d="M{:.1f} {}l-4 -7h8z"/>', x(measure.mark), y - 3)
        described += f"; {measure.mark_name} {measure.written(measure.mark)}"
    if measure.good != "beside":
        at, way = (x(measure.high), -1) if measure.good == "high" else (x(measure.low), 1)
        chart.line("good", at, at + 26 * way, y)
    if measure.interval is not None:
        chart.line("interval", x(measure.interval.low), x(measure.interval.high), y)
    chart.add('<circle class="here" cx="{:.1f}" cy="{}" r="5"/>', x(measure.value), y)
    chart.text(chart.left, height - 1, measure.written(measure.low), "end-note")
    chart.text(chart.right, height - 1, measure.written(measure.high), "end-note end")
    return chart.svg(described, below=0)


def histogram(lengths: Sequence[int], *, height: int = 220, width: int = 420, bars: int = 24) -> Markup:
    """Word lengths of the texts, with the median marked; the longest hundredth shares the last bar."""
    if not len(lengths):
        return Markup("")
    values = np.asarray(lengths, dtype=np.int64)
    least = int(values.min())
    ceiling = max(int(np.quantile(values, 0.99)), least + 1)
    size = max(1, -(-(ceiling + 1 - least) // bars))
    start = least // size * size
    counts = np.bincount(np.minimum((values - start) // size, (ceiling - start) // size))
    chart, number = Chart(width, height, (40, 14, 16, 34), _ceiling(float(counts.max()))), len(counts)
    slot = (chart.right - chart.left) / number
    for bar, count in enumerate(counts):
        low, high = start + bar * size, start + bar * size + size - 1
        span = f"{low}" if high == low else f"{low} to {high}"
        if int(values.max()) > ceiling and bar == number - 1:
            span = f"{low} or more"
        y = chart.y(float(count))
        chart.add(
            '<rect class="bar c0" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>',
            *(chart.left + bar * slot + 0.75, y, max(1.0, slot - 1.5), max(0.0, chart.y(0) - y)),
            f"{span} words: {count} texts",
        )
    ticks = range(0, number, max(1, -(-number // 8)))
    median = float(np.median(values))
    at = chart.left + min((median - start) / size + (0.5 if size == 1 else 0.0), number) * slot
    chart.across((((bar + 0.5) / number, str(start + bar * size)) for bar in ticks), "words")
    chart.line("budget", at, at, chart.top, chart.y(0))
    far, side = (-5, "note strong end") if at > width / 2 else (5, "note strong")
    chart.text(at + far, chart.top + 9, f"median {median:g}", side)
    return chart.svg(f"Lengths of the texts in words, median {median:g}")


def _ceiling(value: float) -> float:
    """The next round number whose quarters are round too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10):
        if step * power >= value * (1 - 1e-9):
            return float(step * power)
    return float(10 * power)
