"""The first chart of a run's report as a file of its own: ``python -m examples.clinic.picture runs/clinic``.

The report draws the generators' shares by round. The file contains the report's colours for a light page, so that it
can be shown anywhere.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "pictures" / "clinic.svg"
COLOURS = ("#2f6cb3", "#c0681c", "#25876c", "#b0437f", "#7463b8")  # --c0 to --c4 of report.css
STYLE = """text { font: 12.5px sans-serif; fill: #5d606b; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.note { fill: #1c1d22; font-weight: 600; } .grid { stroke: #e4e1da; }
.budget { stroke: #1c1d22; stroke-dasharray: 5 4; }
polyline { fill: none; stroke-width: 2.4; } .mark { fill: #ffffff; stroke-width: 2.2; }
"""


def picture(report: str) -> str:
    """Returns the first chart of a report, as an SVG file's contents."""
    chart = re.search(r'(<svg viewBox="[^"]*")( role="img" aria-label="Weight.*?</svg>)', report, re.DOTALL)
    if chart is None:
        raise SystemExit("this report has no chart of weights: its run has one generator")
    colour_rules = "".join(f".c{number} * {{ stroke: {colour}; }}\n" for number, colour in enumerate(COLOURS))
    opening, body = chart[1], chart[2]
    tag, inner = body.split(">", 1)
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    style = f"<style>{STYLE}{colour_rules}</style>"
    return f'{opening} xmlns="http://www.w3.org/2000/svg"{tag}>{style}{background}{inner}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    options.out.write_text(picture((options.run / "report.html").read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
