"""The one kind of drawing of reports and comparisons: figures of several names side by side, as inline SVG.

A style sheet decides the colours, for light and dark: marks carry classes. Every name that reaches a drawing is
escaped; numbers are formatted here and hold no markup.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

COLOURS = 9  # named colours; whatever comes after them shares the last, grey one
WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 16, 34  # margins around the frame
MOST_TICKS = 12  # labels below a chart
ROW = 18  # height of a line of the legend

Points = Sequence[tuple[float, float] | None]
"""A figure and half of its interval, 0 for none, at each tick."""


def colour(index: int) -> int:
    """Returns the colour number of the index-th name."""
    return min(index, COLOURS)


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
    """Draws figures of several names side by side, one colour per name; "" if there are none.

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
    right, bottom, several = width - RIGHT, height - BOTTOM, len(series) > 1

    def x(place: float) -> float:
        return LEFT + (right - LEFT) * place / len(ticks)

    def y(value: float) -> float:
        return TOP + (bottom - TOP) * (1 - (value - low) / (high - low))

    parts = []
    form = ".0f" if percent else "g" if joined else ".4g"
    for value in np.linspace(low, high, 5):
        label = f"{100 * value:{form}} %" if percent else f"{value:{form}}"
        parts += [_line("grid", LEFT, right, y(value), y(value)), _text(LEFT - 8, y(value) + 4, label, "tick end")]
    for at in range(0, len(ticks), max(1, -(-len(ticks) // MOST_TICKS))):
        parts.append(_text(x(at + 0.5), height - 10, ticks[at], "tick middle"))
    parts.append(_text((LEFT + right) / 2, height + 6, axis, "axis middle"))
    if reference is not None:
        mark = y(reference[0])
        parts += [_line("budget", LEFT, right, mark, mark), _text(LEFT + 4, mark - 5, reference[1], "note strong")]
    for rank, (name, points) in enumerate(series.items()):
        shift = 0.5 if joined else (rank + 1) / (len(series) + 1)
        marks = [(x(at + shift), at, *point) for at, point in enumerate(points) if point is not None]
        parts.append(_markup('<g class="series c{}">', colour(rank)))
        if joined:
            line = " ".join(f"{across:.1f},{y(mean):.1f}" for across, _, mean, _ in marks)
            parts.append(_markup('<polyline points="{}"/>', line))
        for across, at, mean, half in marks:
            shown = f"{100 * mean:.1f} %" if percent else f"{mean:.4g}" + (f" ± {half:.2g}" if half else "")
            parts.append(_line("interval", across, across, y(mean - half), y(mean + half)))
            parts.append(_dot(across, y(mean), f"{name}, {ticks[at]}: {shown}"))
        below = height + 20 + ROW * rank
        parts += [_dot(LEFT + 4, below, name)] if several else []
        parts.append(Markup("</g>"))
        parts += [_text(LEFT + 14, below + 4, name, "")] if several else []
    return _markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
        *(width, height + 12 + ROW * len(series) * several, description, Markup("").join(parts)),
    )


def _markup(form: str, *values: Any) -> Markup:
    """Puts values into markup, escaped."""
    return Markup(form).format(*values)  # noqa: S704 - the values are escaped


def _text(x: float, y: float, text: str, classes: str) -> Markup:
    return _markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>', x, y, classes, text)


def _line(classes: str, x1: float, x2: float, y1: float, y2: float) -> Markup:
    return _markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>', classes, x1, x2, y1, y2)


def _dot(x: float, y: float, title: str) -> Markup:
    return _markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.6"><title>{}</title></circle>', x, y, title)


def _ceiling(value: float) -> float:
    """Returns the next round number whose quarters are round too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    steps = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
    return float(power * next(step for step in steps if step * power >= value * (1 - 1e-9)))
