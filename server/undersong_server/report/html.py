"""``report.html``: one file, no network, readable without scripts, printed as it is read.

The page carries its own style and one small script, and a content security policy that allows that script by its hash
and nothing else: even a text that slipped past the escaping could not run or load anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
from markupsafe import Markup

from undersong_common.arrays import Float64, Floats
from undersong_common.printable import duration
from undersong_server.evaluation import panel
from undersong_server.pool import Sample
from undersong_server.report import charts
from undersong_server.report.data import GeneratorUse, PrivacyStatement, ReportData, number, plain

MAP_POINTS = 1500
SHOWN_TEXTS = 300
PRICE_DIGITS = 4


def render_html(data: ReportData) -> str:
    """The report. The same data give the same bytes."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("undersong_server.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain, "number": number, "duration": duration}
    script = _own_file("report.js")
    names = data.label_names
    counts = data.counts()
    # Colours go to the labels with most texts; the task's order stays where labels are listed.
    by_size = np.argsort(-counts.sum(axis=1), kind="stable") if len(names) else np.zeros(0, dtype=np.int64)
    label_colour = {names[int(row)]: charts.colour(place) for place, row in enumerate(by_size)}
    generator_colour = {name: charts.colour(place) for place, name in enumerate(data.generators)}
    return environment.get_template("report.html.j2").render(
        data=data,
        privacy=data.privacy,
        style=Markup(_own_file("report.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        labels=_label_rows(data, counts),
        generators=[
            (name, generator_colour[name], int(n)) for name, n in zip(data.generators, counts.sum(0), strict=True)
        ],
        label_legend=[(names[int(row)], label_colour[names[int(row)]]) for row in by_size],
        panel_settings=panel.settings(),
        weight_chart=_weights(data) if len(data.generators) > 1 else "",
        epsilon_chart=_spending(data.privacy) if data.privacy.is_private else "",
        length_chart=charts.histogram([len(sample.text.split()) for sample in data.samples]),
        map=_map(data, generator_colour, label_colour),
        gauges=[(each, charts.gauge(each)) for each in data.measures],
        shown=[
            {"sample": sample, "colour": generator_colour[sample.generator]} for sample in spread(data, SHOWN_TEXTS)
        ],
        show_labels=any(names),
        usage=_usage_columns(data.usage),
        total_seconds=sum(seconds for _, seconds in data.seconds),
        longest_phase=max((seconds for _, seconds in data.seconds), default=0.0),
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


def spread(data: ReportData, count: int) -> list[Sample]:
    """About ``count`` samples in which every (label, generator, round) has its turn, mixed."""
    return [data.samples[position] for position in _spread_positions(data.samples, count)]


def _spread_positions(samples: Sequence[Sample], count: int) -> list[int]:
    groups: dict[tuple[str, str, int], list[int]] = {}
    for position, sample in enumerate(samples):
        groups.setdefault((sample.label, sample.generator, sample.round), []).append(position)
    rng = np.random.default_rng(0)  # which of them are shown is no secret and should not change from view to view
    waiting = [rng.permutation(members).tolist() for members in groups.values()]
    chosen: list[int] = []
    while waiting and len(chosen) < count:
        chosen.extend(members.pop() for members in waiting)
        waiting = [members for members in waiting if members]
    return [chosen[place] for place in rng.permutation(min(count, len(chosen)))]


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


def _map(data: ReportData, generator_colour: dict[str, int], label_colour: dict[str, int]) -> dict[str, object] | None:
    if data.embeddings is None or len(data.embeddings) != len(data.samples) or len(data.samples) < 3:
        return None
    flat = project(data.embeddings)
    rng = np.random.default_rng(0)
    at = np.arange(len(data.samples))
    if len(at) > MAP_POINTS:
        at = rng.choice(at, size=MAP_POINTS, replace=False)
    at = rng.permutation(at)  # so that no generator is painted over all others
    samples = [data.samples[position] for position in at]
    return {
        "drawing": charts.scatter(
            flat.points[at],
            [generator_colour[sample.generator] for sample in samples],
            [label_colour[sample.label] for sample in samples],
            [_caption(sample) for sample in samples],
        ),
        "shown": len(at),
        "explained": sum(flat.explained),
    }


def _caption(sample: Sample) -> str:
    of = f"{sample.label} · " if sample.label else ""
    return f"{of}{sample.generator}, round {sample.round}\n{' '.join(sample.text.split())}"


def _usage_columns(usage: Sequence[GeneratorUse]) -> dict[str, object]:
    return {
        "rows": usage,
        "tokens": any(each.tokens for each in usage),
        "price": any(each.count.price_usd for each in usage),
        "total_price": sum(each.count.price_usd for each in usage),
        "digits": PRICE_DIGITS,
    }


@dataclass(frozen=True, eq=False)
class Map:
    """``points`` float64 [n, 2]; ``explained``: share of the variance along each axis, and of both."""

    points: Float64
    explained: tuple[float, float]


def project(embeddings: Floats) -> Map:
    """Principal components 1 and 2 of [n, d]; the sign is fixed, so the same embeddings give the same map."""
    rows, width = embeddings.shape
    if rows == 0 or width == 0:
        return Map(np.zeros((rows, 2)), (0.0, 0.0))
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0, dtype=np.float64)
    variances, directions = np.linalg.eigh(centred.T @ centred)
    order = np.argsort(variances)[::-1][:2]
    axes = directions[:, order]
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    points = np.zeros((rows, 2))
    points[:, : axes.shape[1]] = centred @ axes
    total = max(float(variances.sum()), 1e-30)
    shares = [max(0.0, float(variances[index])) / total for index in order] + [0.0, 0.0]
    return Map(points, (shares[0], shares[1]))
