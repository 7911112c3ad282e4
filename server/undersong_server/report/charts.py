"""The report's drawings as inline SVG. Colours are classes, so that the style sheet decides them for light and dark.

Every name that reaches a drawing is escaped; numbers are formatted here and hold no markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from undersong_common.arrays import Float64
from undersong_server.report.data import Measure

COLOURS = 9  # named colours; whatever comes after them shares the last, grey one
WIDTH = 720


def colour(index: int) -> int:
    """The colour number of the index-th name."""
    return min(index, COLOURS)


def line_chart(names: Sequence[str], rows: Sequence[Sequence[float]], *, height: int = 300) -> Markup:
    """One line per name over the rounds; ``rows`` [rounds][names] are shares of one. Names stand at the lines' ends."""
    if not rows or not names:
        return Markup("")
    values = np.array(rows, dtype=np.float64)
    longest = max(len(name) for name in names)
    height = max(height, 60 + 18 * len(names))
    left, right, top, bottom = 52, min(220, 64 + 8 * longest), 14, 34
    high = _ceiling(max(float(values.max()), 2.0 / len(names)))
    last = max(1, len(values) - 1)

    def x(index: float) -> float:
        return left + (WIDTH - left - right) * index / last

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - value / high)

    parts = [_grid(left, WIDTH - right, y, high, lambda v: f"{100 * v:.0f} %")]
    step = max(1, -(-len(values) // 12))
    parts.extend(_text(x(t), height - 10, str(t), "tick middle") for t in range(0, len(values), step))
    parts.append(_text((left + WIDTH - right) / 2, height + 6, "round", "axis middle"))
    share = 1 / len(names)
    parts.append(
        Markup('<line class="reference" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            left, WIDTH - right, y(share), y(share)
        )
    )
    parts.append(_text(WIDTH - right - 8, y(share) - 5, "equal share", "note end"))
    places = _apart([y(float(value)) for value in values[-1]], 17, top, height - bottom)
    for index, name in enumerate(names):
        hue = colour(index)
        path = " ".join(f"{x(t):.1f},{y(float(v)):.1f}" for t, v in enumerate(values[:, index]))
        parts.append(Markup('<g class="series c{}">').format(hue))
        parts.append(Markup('<polyline points="{}"/>').format(path))
        for t, value in enumerate(values[:, index]):
            title = f"{name}, round {t}: {100 * value:.1f} %"
            parts.append(
                Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.6"><title>{}</title></circle>').format(
                    x(t), y(float(value)), title
                )
            )
        end = f"{_shortened(name, 18)} {100 * float(values[-1, index]):.0f} %"
        parts.append(_text(WIDTH - right + 10, places[index] + 4, end, "name"))
        parts.append(Markup("</g>"))
    described = "; ".join(f"{name} {100 * float(v):.0f} %" for name, v in zip(names, values[-1], strict=True))
    return _svg(WIDTH, height + 12, f"Weight of each generator by round. In the last: {described}", parts)


def step_chart(after: Sequence[float], budget: float, *, height: int = 220, width: int = 420) -> Markup:
    """Cumulative epsilon after each private sum, and the budget."""
    if not after:
        return Markup("")
    left, right, top, bottom = 40, 14, 16, 34
    high = _ceiling(max(budget, *after))
    count = len(after)

    def x(index: float) -> float:
        return left + (width - left - right) * index / count

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - value / high)

    path = [f"M{x(0):.1f},{y(0):.1f}"]
    for index, value in enumerate(after):
        path.append(f"V{y(value):.1f}H{x(index + 1):.1f}")
    area = "".join(path) + f"V{y(0):.1f}Z"
    parts = [_grid(left, width - right, y, high, lambda v: f"{v:g}")]
    parts.append(Markup('<path class="area c0" d="{}"/><path class="stroke c0" d="{}"/>').format(area, "".join(path)))
    parts.append(
        Markup('<line class="budget" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            left, width - right, y(budget), y(budget)
        )
    )
    parts.append(_text(left + 4, y(budget) - 5, f"budget {budget:.4g}", "note strong"))
    step = max(1, -(-count // 10))
    parts.extend(_text(x(k + 0.5), height - 10, str(k + 1), "tick middle") for k in range(0, count, step))
    parts.append(_text((left + width - right) / 2, height + 6, "private sum", "axis middle"))
    described = f"Epsilon spent after each of {count} private sums, ending at {after[-1]:.4g} of {budget:.4g}"
    return _svg(width, height + 12, described, parts)


def gauge(measure: Measure, *, width: int = 220, height: int = 30) -> Markup:
    """Where a figure stands on its scale: a dot, its interval, the figure it is compared with, and the good side."""
    left, right, y = 6, 6, 13

    def x(value: float) -> float:
        share = (value - measure.low) / (measure.high - measure.low) if measure.high > measure.low else 0.0
        return left + (width - left - right) * min(1.0, max(0.0, share))

    parts = [Markup('<line class="track" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(left, width - right, y, y)]
    described = f"{measure.name}: {measure.shown}, {measure.good_words}, scale {measure.scale}"
    if np.isfinite(measure.mark):
        at = x(measure.mark)
        parts.append(Markup('<path class="mark" d="M{:.1f} {}l-4 -7h8z"/>').format(at, y - 3))
        described += f"; {measure.mark_name} {measure.written(measure.mark)}"
    if measure.good != "beside":
        at, way = (x(measure.high), -1) if measure.good == "high" else (x(measure.low), 1)
        parts.append(
            Markup('<line class="good" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(at, at + 26 * way, y, y)
        )
    if measure.interval is not None:
        low, high = x(measure.interval.low), x(measure.interval.high)
        parts.append(Markup('<line class="interval" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(low, high, y, y))
    parts.append(Markup('<circle class="here" cx="{:.1f}" cy="{}" r="5"/>').format(x(measure.value), y))
    parts.append(_text(left, height - 1, measure.written(measure.low), "end-note"))
    parts.append(_text(width - right, height - 1, measure.written(measure.high), "end-note end"))
    return _svg(width, height, described, parts)


def histogram(lengths: Sequence[int], *, height: int = 220, width: int = 420, bars: int = 24) -> Markup:
    """Word lengths of the texts, with the median marked; the longest hundredth shares the last bar."""
    if not len(lengths):
        return Markup("")
    values = np.asarray(lengths, dtype=np.int64)
    ceiling = max(int(np.quantile(values, 0.99)), int(values.min()) + 1)
    size = max(1, -(-(ceiling + 1 - int(values.min())) // bars))
    start = int(values.min()) // size * size
    index = np.minimum((values - start) // size, (ceiling - start) // size)
    counts = np.bincount(index)
    left, right, top, bottom = 40, 14, 16, 34
    high = _ceiling(float(counts.max()))
    slot = (width - left - right) / len(counts)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - value / high)

    parts = [_grid(left, width - right, y, high, lambda v: f"{v:g}")]
    more = int(values.max()) > ceiling
    for bar, count in enumerate(counts):
        low = start + bar * size
        upto = low + size - 1
        open_end = more and bar == len(counts) - 1
        span = f"{low} or more" if open_end else (f"{low}" if upto == low else f"{low} to {upto}")
        parts.append(
            Markup(
                '<rect class="bar c0" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
            ).format(
                left + bar * slot + 0.75,
                y(float(count)),
                max(1.0, slot - 1.5),
                max(0.0, y(0) - y(float(count))),
                f"{span} words: {count} texts",
            )
        )
    step = max(1, -(-len(counts) // 8))
    parts.extend(
        _text(left + (bar + 0.5) * slot, height - 10, str(start + bar * size), "tick middle")
        for bar in range(0, len(counts), step)
    )
    median = float(np.median(values))
    at = left + min((median - start) / size + (0.5 if size == 1 else 0.0), len(counts)) * slot
    parts.append(Markup('<line class="budget" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2:.1f}"/>').format(at, top, y(0)))
    side = "note strong end" if at > width / 2 else "note strong"
    parts.append(_text(at + (-5 if at > width / 2 else 5), top + 9, f"median {median:g}", side))
    parts.append(_text((left + width - right) / 2, height + 6, "words", "axis middle"))
    return _svg(width, height + 12, f"Lengths of the texts in words, median {median:g}", parts)


def scatter(
    points: Float64,
    generators: Sequence[int],
    labels: Sequence[int],
    texts: Sequence[str],
    *,
    height: int = 460,
) -> Markup:
    """A map; each point carries its generator's and its label's class and its text for the reader's pointer."""
    margin = 14
    low, high = np.quantile(points, [0.002, 0.998], axis=0) if len(points) else (np.zeros(2), np.ones(2))
    scale = np.where(high > low, high - low, 1.0)
    unit = np.clip((points - low) / scale, -0.01, 1.01)
    parts = []
    for (px, py), generator, label, text in zip(unit, generators, labels, texts, strict=True):
        parts.append(
            Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.4" class="g{} l{}" data-text="{}"/>').format(
                margin + px * (WIDTH - 2 * margin),
                height - margin - py * (height - 2 * margin),
                generator,
                label,
                _shortened(text, 220),
            )
        )
    return _svg(WIDTH, height, f"Map of {len(points)} texts by similarity; the sample below holds them as text", parts)


def _svg(width: int, height: int, description: str, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, description, Markup("").join(parts)
    )


def _text(x: float, y: float, text: str, classes: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>').format(x, y, classes, text)


def _grid(left: float, right: float, y: Callable[[float], float], high: float, label: Callable[[float], str]) -> Markup:
    parts = []
    for tick in range(5):
        value = high * tick / 4
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                left, right, y(value), y(value)
            )
        )
        parts.append(_text(left - 8, y(value) + 4, label(value), "tick end"))
    return Markup("").join(parts)


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
