"""Drawings as inline SVG: the report's, and those of a comparison's page.

A style sheet decides the colours, for light and dark: marks carry classes. Every name that reaches a drawing is
escaped; numbers are formatted here and hold no markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from undersong_common.arrays import Float64
from undersong_server.report.data import Measure

COLOURS = 9  # named colours; whatever comes after them shares the last, grey one
WIDTH = 720


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


def line_chart(names: Sequence[str], rows: Sequence[Sequence[float]], *, height: int = 300) -> Markup:
    """One line per name over the rounds; ``rows`` [rounds][names] are shares of one. Names stand at the lines' ends."""
    if not rows or not names:
        return Markup("")
    values = np.array(rows, dtype=np.float64)
    right = min(220, 64 + 8 * max(len(name) for name in names))
    high = _ceiling(max(float(values.max()), 2.0 / len(names)))
    chart = Chart(WIDTH, max(height, 60 + 18 * len(names)), (52, right, 14, 34), high, tick=".0f", percent=True)
    last = max(1, len(values) - 1)
    chart.across(((t / last, str(t)) for t in range(0, len(values), _stride(len(values), 12))), "round")
    share = chart.y(1 / len(names))
    chart.line("reference", chart.left, chart.right, share)
    chart.text(chart.right - 8, share - 5, "equal share", "note end")
    places = _apart([chart.y(float(value)) for value in values[-1]], 17, chart.top, chart.bottom)
    for index, name in enumerate(names):
        points = [(chart.x(t / last), chart.y(float(value)), float(value)) for t, value in enumerate(values[:, index])]
        chart.add('<g class="series c{}">', colour(index))
        chart.add('<polyline points="{}"/>', " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points))
        for t, (x, y, value) in enumerate(points):
            chart.dot("", x, y, f"{name}, round {t}: {100 * value:.1f} %")
        end = f"{_shortened(name, 18)} {100 * float(values[-1, index]):.0f} %"
        chart.text(chart.right + 10, places[index] + 4, end, "name")
        chart.add("</g>")
    described = "; ".join(f"{name} {100 * float(v):.0f} %" for name, v in zip(names, values[-1], strict=True))
    return chart.svg(f"Weight of each generator by round. In the last: {described}")


def step_chart(after: Sequence[float], budget: float, *, height: int = 220, width: int = 420) -> Markup:
    """Cumulative epsilon after each private sum, and the budget."""
    if not after:
        return Markup("")
    chart, count = Chart(width, height, (40, 14, 16, 34), _ceiling(max(budget, *after))), len(after)
    steps = "".join(f"V{chart.y(value):.1f}H{chart.x((k + 1) / count):.1f}" for k, value in enumerate(after))
    path = f"M{chart.x(0):.1f},{chart.y(0):.1f}{steps}"
    chart.add('<path class="area c0" d="{}V{:.1f}Z"/><path class="stroke c0" d="{}"/>', path, chart.y(0), path)
    chart.line("budget", chart.left, chart.right, chart.y(budget))
    chart.text(chart.left + 4, chart.y(budget) - 5, f"budget {budget:.4g}", "note strong")
    chart.across((((k + 0.5) / count, str(k + 1)) for k in range(0, count, _stride(count, 10))), "private sum")
    return chart.svg(f"Epsilon spent after each of {count} private sums, ending at {after[-1]:.4g} of {budget:.4g}")


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
    ticks = range(0, number, _stride(number, 8))
    median = float(np.median(values))
    at = chart.left + min((median - start) / size + (0.5 if size == 1 else 0.0), number) * slot
    chart.across((((bar + 0.5) / number, str(start + bar * size)) for bar in ticks), "words")
    chart.line("budget", at, at, chart.top, chart.y(0))
    far, side = (-5, "note strong end") if at > width / 2 else (5, "note strong")
    chart.text(at + far, chart.top + 9, f"median {median:g}", side)
    return chart.svg(f"Lengths of the texts in words, median {median:g}")


def scatter(
    points: Float64, generators: Sequence[int], labels: Sequence[int], texts: Sequence[str], *, height: int = 460
) -> Markup:
    """A map; each point carries its generator's and its label's class and its text for the reader's pointer."""
    chart = Chart(WIDTH, height, (14, 14, 14, 14), 1.0, tick="")
    low, high = np.quantile(points, [0.002, 0.998], axis=0) if len(points) else (np.zeros(2), np.ones(2))
    unit = np.clip((points - low) / np.where(high > low, high - low, 1.0), -0.01, 1.01)
    for (px, py), generator, label, text in zip(unit, generators, labels, texts, strict=True):
        chart.add(
            '<circle cx="{:.1f}" cy="{:.1f}" r="3.4" class="g{} l{}" data-text="{}"/>',
            *(chart.x(px), chart.y(py), generator, label, _shortened(text, 220)),
        )
    return chart.svg(f"Map of {len(points)} texts by similarity; the sample below holds them as text", below=0)


def interval_chart(
    title: str, groups: Sequence[str], points: Sequence[tuple[str, int, float, float]], *, width: int = 560
) -> Markup:
    """Figures with their intervals side by side, one colour per name.

    Args:
        groups: labels below the frame.
        points: name, number of its group, figure and half of its interval.
    """
    names = list(dict.fromkeys(name for name, *_ in points))
    low = min(mean - half for *_, mean, half in points)
    high = max(mean + half for *_, mean, half in points)
    room = 0.05 * ((high - low) or 1.0)
    chart = Chart(width, 300, (56, 14, 30, 40), high + room, low=low - room, tick=".4g")
    chart.text(chart.left, 18, title, "note strong")
    for number, label in enumerate(groups):
        chart.text(chart.x((number + 0.5) / len(groups)), chart.bottom + 18, label, "tick middle")
    for name, group, mean, half in points:
        rank = names.index(name)
        x = chart.x((group + (rank + 1) / (len(names) + 1)) / len(groups))
        chart.line(f"interval c{colour(rank)}", x, x, chart.y(mean - half), chart.y(mean + half))
        chart.dot(f"c{colour(rank)}", x, chart.y(mean), f"{name}: {mean:.4g} ± {half:.2g}")
    for rank, name in enumerate(names):
        at = chart.bottom + 40 + 18 * rank
        chart.dot(f"c{colour(rank)}", chart.left + 4, at - 4, name)
        chart.text(chart.left + 14, at, name, "")
    return chart.svg(title, below=18 * len(names))


def _stride(count: int, most: int) -> int:
    """Every how many-th of ``count`` labels is written, so that there are ``most`` at most."""
    return max(1, -(-count // most))


def _ceiling(value: float) -> float:
    """The next round number whose quarters are round too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10):
        if step * power >= value * (1 - 1e-9):
            return float(step * power)
    return float(10 * power)


def _apart(places: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Moves labels so that none covers another, keeping their order, and within the frame where they fit."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    previous = top - gap
    for index in order:
        moved[index] = previous = max(places[index], previous + gap)
    limit = bottom + gap
    for index in reversed(order):
        moved[index] = limit = min(moved[index], limit - gap)
    return moved


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
