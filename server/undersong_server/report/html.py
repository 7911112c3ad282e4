"""``report.html``: one file, no network, readable without scripts, printed as it is read.

The page carries its own style and one small script, and a content security policy that allows that script by its hash
and nothing else: even a text that slipped past the escaping could not run or load anything.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from markupsafe import Markup

from undersong_common.printable import duration
from undersong_common.printed_page import template
from undersong_server.evaluation import panel
from undersong_server.pool import Sample
from undersong_server.report import charts
from undersong_server.report.data import PrivacyStatement, ReportData, number, plain

SHOWN_TEXTS = 300
LENGTH_GROUPS = 24


def render_html(data: ReportData) -> str:
    """Renders the report. The same data give the same bytes."""
    script = _own_file("report.js")
    counts = data.counts()
    generator_colour = {name: charts.colour(place) for place, name in enumerate(data.generators)}
    return template("undersong_server.report", "report.html.j2", plain=plain, number=number, duration=duration).render(
        data=data,
        privacy=data.privacy,
        style=Markup(_own_file("report.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        labels=_label_rows(data, counts),
        generators=[
            (name, generator_colour[name], int(n)) for name, n in zip(data.generators, counts.sum(0), strict=True)
        ],
        panel_settings=panel.settings(),
        weight_chart=_weights(data) if len(data.generators) > 1 else "",
        epsilon_chart=_spending(data.privacy) if data.privacy.is_private else "",
        length_chart=_lengths(data),
        shown=[
            {"sample": sample, "colour": generator_colour[sample.generator]}
            for sample in spread(data.samples, SHOWN_TEXTS)
        ],
        show_labels=any(data.label_names),
        total_seconds=sum(seconds for _, seconds in data.seconds),
        longest_phase=max((seconds for _, seconds in data.seconds), default=0.0),
    )


def _lengths(data: ReportData) -> Markup:
    """Draws the number of texts by their length in words; the longest hundredth shares the last place."""
    if not data.samples:
        return Markup("")
    words = np.array([len(sample.text.split()) for sample in data.samples])
    shown = np.minimum(words, math.ceil(np.quantile(words, 0.99)))
    size = -(-(int(np.ptp(shown)) + 1) // LENGTH_GROUPS)
    counts = np.bincount((shown - shown.min()) // size)
    least = [str(shown.min() + size * place) for place in range(len(counts))]
    least[-1] += " or more" if words.max() > shown.max() else ""
    return charts.series_chart(
        f"Lengths of the texts in words, median {np.median(words):g}",
        least,
        {"texts": [(float(count), 0.0) for count in counts]},
        axis=f"words (median {np.median(words):g})",
        width=420,
        height=220,
    )


def _weights(data: ReportData) -> Markup:
    series = {name: [(row[at], 0.0) for row in data.weights] for at, name in enumerate(data.generators)}
    last = "; ".join(f"{name} {100 * points[-1][0]:.0f} %" for name, points in series.items() if points)
    return charts.series_chart(
        f"Weight of each generator by round. In the last: {last}",
        [str(number) for number in range(len(data.weights))],
        series,
        axis="round",
        reference=(1 / len(series), "equal share"),
        percent=True,
    )


def _spending(privacy: PrivacyStatement) -> Markup:
    after, budget = privacy.epsilon_after, privacy.epsilon
    spent = f"{after[-1]:.4g}" if after else "0"
    return charts.series_chart(
        f"Epsilon spent after each of {len(after)} private sums, ending at {spent} of {budget:.4g}",
        [str(number + 1) for number in range(len(after))],
        {"epsilon spent": [(value, 0.0) for value in after]},
        axis="private sum",
        reference=(budget, f"budget {budget:.4g}"),
        width=420,
        height=220,
    )


def spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Draws about ``count`` samples, mixed, in which every (label, generator, round) has its turn."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for position, sample in enumerate(samples):
        groups.setdefault((sample.label, sample.generator, sample.round), []).append(position)
    rng = np.random.default_rng(0)  # which of them are shown is no secret and should not change from view to view
    waiting = [rng.permutation(members).tolist() for members in groups.values()]
    chosen: list[int] = []
    while waiting and len(chosen) < count:
        chosen.extend(members.pop() for members in waiting)
        waiting = [members for members in waiting if members]
    return [samples[chosen[place]] for place in rng.permutation(min(count, len(chosen)))]


def _own_file(name: str) -> str:
    return resources.files("undersong_server.report").joinpath(name).read_text(encoding="utf-8")


def _label_rows(data: ReportData, counts: np.ndarray) -> list[dict[str, object]]:
    largest = max(1, int(counts.sum(axis=1).max(initial=0)))
    return [
        {
            "name": name or "(no label)",
            "count": int(row.sum()),
            "parts": [
                (charts.colour(index), 100 * int(n) / largest, f"{data.generators[index]}: {int(n)}")
                for index, n in enumerate(row)
                if n
            ],
        }
        for name, row in zip(data.label_names, counts, strict=True)
    ]


# The dataset card: ``README.md`` beside the corpus, for whoever receives it. Its words are in ``card.md.j2``.

_ESCAPED = "\\`*_{}[]()#|~"  # what could turn a name into markup


def render_card(data: ReportData) -> str:
    """Markdown with the usual YAML header. Counts are of the synthetic texts only."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("undersong_server.report", ""),
        autoescape=False,  # noqa: S701 - Markdown, whose every value ``finalize`` escapes
        finalize=lambda value: value if isinstance(value, Markup) else _md(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: Markup(number(value) if value >= 10_000 else value),  # noqa: S704 - digits
        "percent": lambda value: f"{100 * value:.1f} %",
        "yaml": _yaml,
    }
    counts = data.counts().tolist()
    words = [len(sample.text.split()) for sample in data.samples]
    written = environment.get_template("card.md.j2").render(
        data=data,
        privacy=data.privacy,
        said=data.publication,
        spdx=re.fullmatch(r"[A-Za-z0-9.+-]+", data.publication.licence),
        texts=len(data.samples),
        named=[name for name in data.label_names if name],
        counts=list(zip(data.label_names, counts, strict=True)),
        totals=[sum(column) for column in zip(*counts, strict=True)],
        lengths=[f"{value:.0f}" for value in np.quantile(words, [0.05, 0.5, 0.95])] if words else [],
        settings=(
            ("method", data.method),
            *data.settings,
            ("embedder", data.embedder),
            ("signed plan, SHA-256", data.plan_hash),
            ("made", data.created),
            ("Undersong", data.version),
        ),
        panel_settings=panel.settings(),
    )
    return re.sub(r"\n{3,}", "\n\n", written).rstrip("\n") + "\n"


def _md(text: str) -> str:
    """Writes a name or sentence as plain Markdown text on one line."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join("\\" + letter if letter in _ESCAPED else letter for letter in line)


def _yaml(text: Any) -> Markup:
    """Writes a name as a JSON string, which is also a YAML string, so that no colon or quote breaks the header."""
    return Markup(json.dumps(text, ensure_ascii=False).replace("<", "\\u003c"))  # noqa: S704
