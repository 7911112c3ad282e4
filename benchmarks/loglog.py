"""Draws lines of cost against size on logarithmic axes as SVG text; a power law is a straight line there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 320, 70, 190, 34, 46
COLOURS = ("#0b6e99", "#b3541e", "#4c7a34", "#7a4a8f", "#8a6d00")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 3")  # told apart without colours too


def draw_chart(title: str, across: str, up: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Returns a whole SVG picture.

    Args:
        across, up: what the axes are, with units.
        lines: (size, cost) by name, all positive.
    """
    points = [point for line in lines.values() for point in line]
    xs, ys = ([point[axis] for point in points] for axis in (0, 1))
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = 10.0 ** math.floor(math.log10(min(ys))), 10.0 ** math.ceil(math.log10(max(ys) * 1.001))

    def place(x: float, y: float) -> tuple[float, float]:
        along = math.log(x / x_low) / math.log(x_high / x_low)
        above = math.log(y / y_low) / math.log(y_high / y_low)
        return LEFT + along * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - above * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>']
    for power in range(round(math.log10(y_low)), round(math.log10(y_high)) + 1):
        y = place(x_low, 10.0**power)[1]
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#d5d5d5"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(10.0**power)}</text>')
    for x in sorted(set(xs)):
        tick_x = place(x, y_low)[0]
        parts.append(f'<line x1="{tick_x:.1f}" y1="{TOP}" x2="{tick_x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{tick_x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(x)}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>')
    parts.append(
        f'<text transform="translate(16 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">{escape(up)}</text>'
    )
    name_heights = _apart([(place(*line[-1])[1], name) for name, line in lines.items()])
    for number, (name, line) in enumerate(lines.items()):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(
            f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        x, y = place(*line[-1])[0], name_heights[name]
        parts.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif"'
        f' font-size="12" fill="#222222">\n<title>{escape(title)}</title>\n<rect width="{WIDTH}" height="{HEIGHT}"'
        ' fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _apart(places: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Returns the heights of the lines' names, moved so that none covers another."""
    heights: dict[str, float] = {}
    last_height = -math.inf
    for y, name in sorted(places):
        last_height = heights[name] = max(y, last_height + 14)
    return heights


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 1 else f"{value:g}"
