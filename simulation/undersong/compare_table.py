"""The table of a comparison: means, deviations and paired differences with their intervals; Markdown, CSV and HTML.

A difference is called higher or lower only where its 95 % interval, over seeds and paired by seed, leaves out zero.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undersong.compare_cell import HEADINGS, PRIVATE_ONLY, Cell, Variant
from undersong.options import ComparisonOptions
from undersong_common.errors import ConfigurationError
from undersong_server import methods as all_methods
from undersong_server.evaluation import panel
from undersong_server.evaluation.panel import MODELS

LEVEL = 0.95
METRICS = (
    "accuracy",
    *MODELS,
    "balanced_accuracy",
    "macro_f1",
    "rarest_recall",
    "bits_per_word",
    "rows",
    *HEADINGS,
)


@dataclass(frozen=True)
class Grid:
    """What is compared.

    Attributes:
        variants: the first one is the reference of the paired differences, unless ``baseline`` names another.
        epsilons: budgets; ``inf`` adds no noise.
        federations: (parties, private records in all); records None takes the whole file.
        seeds: of the simulations.
    """

    variants: tuple[Variant, ...]
    epsilons: tuple[float, ...]
    federations: tuple[tuple[int | None, int | None], ...]
    seeds: tuple[int, ...]
    baseline: str

    @classmethod
    def of(cls, options: ComparisonOptions, others: Sequence[str] = ()) -> Grid:
        """Checks what the caller gave.

        Args:
            options: with one number of records for all numbers of parties, or one for each.
            others: variants that the folder's table has already, any of which may be the baseline.
        """
        methods, epsilons, seeds = options.methods, options.epsilons, options.every_seed
        parties, records, baseline = options.parties, options.records, options.baseline
        if not methods or not epsilons or not seeds:
            raise ConfigurationError("a comparison needs methods, epsilons and seeds", "see undersong compare --help")
        if any(not epsilon > 0 for epsilon in epsilons):
            raise ConfigurationError("--epsilon: not positive", "give positive numbers, or inf for no privacy")
        if len(records) not in (0, 1, max(1, len(parties))):
            raise ConfigurationError(
                f"--records names {len(records)} sizes for {len(parties)} numbers of parties",
                "give one, or one for each number of parties",
            )
        variants = tuple(Variant.parse(name) for name in dict.fromkeys(methods))
        names = [variant.name for variant in variants]
        reference = baseline or next((name for name in names if name != PRIVATE_ONLY), names[0])
        if reference not in (*names, *others):
            known = ", ".join(dict.fromkeys((*names, *others)))
            raise ConfigurationError(f"--baseline {reference!r} is not among --methods", f"choose {known}")
        shapes: list[int | None] = list(parties) or [None]
        sizes: list[int | None] = list(records) or [None]
        sizes = sizes * len(shapes) if len(sizes) == 1 else sizes
        return cls(
            variants,
            tuple(dict.fromkeys(epsilons)),
            tuple(zip(shapes, sizes, strict=True)),
            tuple(dict.fromkeys(seeds)),
            reference,
        )

    def to_json(self) -> dict[str, Any]:
        """What :meth:`from_json` reads."""
        return {
            "methods": [variant.name for variant in self.variants],
            "epsilons": [f"{epsilon:g}" for epsilon in self.epsilons],
            "federations": [list(federation) for federation in self.federations],
            "seeds": list(self.seeds),
            "baseline": self.baseline,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Grid:
        return cls(
            tuple(Variant.parse(name) for name in value["methods"]),
            tuple(float(epsilon) for epsilon in value["epsilons"]),
            tuple((parties, records) for parties, records in value["federations"]),
            tuple(value["seeds"]),
            value["baseline"],
        )

    def with_more(self, other: Grid) -> Grid:
        """Both grids as one, this one's values first; the reference stays."""
        return Grid(
            tuple(dict.fromkeys((*self.variants, *other.variants))),
            tuple(dict.fromkeys((*self.epsilons, *other.epsilons))),
            tuple(dict.fromkeys((*self.federations, *other.federations))),
            tuple(sorted({*self.seeds, *other.seeds})),
            self.baseline,
        )

    def cell(self, variant: Variant, epsilon: float, federation: tuple[int | None, int | None], seed: int) -> Cell:
        """The cell behind a point of the grid: what a variant does not depend on is left out, so it is run once."""
        parties, records = federation
        if variant.name == PRIVATE_ONLY:
            return Cell(variant, None, None, records, seed)
        if variant.training is not None:  # on all records together, whoever holds them
            return Cell(variant, epsilon, None, records, seed)
        if not all_methods.load(variant.method).makes_private_sums:
            return Cell(variant, None, None, None, seed)
        return Cell(variant, epsilon, parties, records, seed)

    def cells(self) -> list[Cell]:
        """Every cell once, seed by seed, so that a stopped comparison has whole seeds."""
        every = (
            self.cell(variant, epsilon, federation, seed)
            for seed in self.seeds
            for federation in self.federations
            for epsilon in self.epsilons
            for variant in self.variants
        )
        return list(dict.fromkeys(every))


@dataclass(frozen=True)
class Spread:
    """Mean, sample deviation, lowest and highest value over ``count`` seeds; ``deviation`` is NaN for a single one."""

    mean: float
    deviation: float
    count: int
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        found = np.asarray(values, dtype=np.float64)
        deviation = float(found.std(ddof=1)) if len(found) > 1 else math.nan
        if not len(found):
            return cls(math.nan, math.nan, 0, math.nan, math.nan)
        return cls(float(found.mean()), deviation, len(found), float(found.min()), float(found.max()))


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences with its Student interval (both ends NaN for fewer than two pairs)."""

    mean: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
        """Pairs values by their key (the seed): same private records, same division, same test set.

        >>> found = Difference.of({0: 3.0, 1: 4.0, 2: 5.0}, {0: 1.0, 1: 2.5, 2: 2.5})
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
        (2.0, 0.758, 3.242)
        """
        from scipy.stats import t

        both = sorted(set(ours) & set(theirs))
        gaps = np.array([ours[seed] - theirs[seed] for seed in both])
        if len(gaps) < 2:
            return cls(float(gaps.mean()) if len(gaps) else math.nan, math.nan, math.nan, len(gaps))
        half = float(t.ppf((1 + LEVEL) / 2, len(gaps) - 1) * gaps.std(ddof=1) / math.sqrt(len(gaps)))
        mean = float(gaps.mean())
        return cls(mean, mean - half, mean + half, len(gaps))

    @property
    def verdict(self) -> str:
        """ "higher", "lower", or "none shown" where the interval holds zero (or does not exist)."""
        if self.low > 0:
            return "higher"
        if self.high < 0:
            return "lower"
        return "none shown"


@dataclass(frozen=True)
class Line:
    """One row of the table: a variant at one epsilon in one federation.

    Attributes:
        weights: the generators' mean weights by name; empty for a variant that gives them none.
        seconds: of a cell, mean.
    """

    variant: str
    epsilon: float
    parties: int | None
    records: int | None
    metrics: Mapping[str, Spread]
    differences: Mapping[str, Difference]
    weights: Mapping[str, float]
    seconds: float


def lines(grid: Grid, found: Mapping[Cell, Mapping[str, Any]]) -> list[Line]:
    """The table's rows in the grid's order; a variant without a single finished cell is left out."""
    result = []
    for parties, records in grid.federations:
        for epsilon in grid.epsilons:
            reference = _by_seed(grid, found, grid.baseline, epsilon, (parties, records))
            for variant in grid.variants:
                ours = _by_seed(grid, found, variant.name, epsilon, (parties, records))
                if not ours:
                    continue
                spreads, differences = {}, {}
                for metric in METRICS:
                    values, others = _of(ours, metric), _of(reference, metric)
                    spreads[metric] = Spread.of(list(values.values()))
                    if variant.name != grid.baseline:
                        differences[metric] = Difference.of(values, others)
                seconds = float(np.mean([sum(cell["seconds"].values()) for cell in ours.values()]))
                weights = _mean_weights(list(ours.values()))
                result.append(Line(variant.name, epsilon, parties, records, spreads, differences, weights, seconds))
    return result


def _mean_weights(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    given = [cell["weights"] for cell in cells if cell.get("weights")]
    names = dict.fromkeys(name for weights in given for name in weights)
    return {name: float(np.mean([weights.get(name, 0.0) for weights in given])) for name in names}


def _of(cells: Mapping[int, Mapping[str, Any]], metric: str) -> dict[int, float]:
    """A figure by seed, where it was computed; a cell of an earlier version may lack it."""
    return {seed: cell[metric] for seed, cell in cells.items() if cell.get(metric) is not None}


def _by_seed(
    grid: Grid,
    found: Mapping[Cell, Mapping[str, Any]],
    name: str,
    epsilon: float,
    federation: tuple[int | None, int | None],
) -> dict[int, Mapping[str, Any]]:
    variant = next(variant for variant in grid.variants if variant.name == name)
    cells = {seed: grid.cell(variant, epsilon, federation, seed) for seed in grid.seeds}
    return {seed: found[cell] for seed, cell in cells.items() if cell in found}


WHERE = ("method", "epsilon", "parties", "records")
CALLED = ("95 % interval", "called")


@dataclass(frozen=True)
class Usefulness:
    """What the table's first columns say of a corpus: its name, its heading, and what multiplies it for the screen."""

    metric: str
    heading: str
    factor: float
    digits: int
    worst: str  # of a Spread: which end is bad
    beside: tuple[tuple[str, str], ...]  # further metrics in the same unit, with their headings

    def shown(self, value: float) -> str:
        return "-" if math.isnan(value) else f"{self.factor * value:.{self.digits}f}"


ACCURACY = Usefulness(
    "accuracy",
    "panel score %",
    100.0,
    2,
    "lowest",
    (*((model, f"{model} %") for model in MODELS), ("macro_f1", "macro-F1 %"), ("rarest_recall", "rarest label %")),
)
NEXT_WORD = Usefulness("bits_per_word", "bits per word", 1.0, 3, "highest", ())


def usefulness(table: Sequence[Line]) -> Usefulness:
    """The panel score; where the task has no labels, the loss of a small language model."""
    return NEXT_WORD if any(line.metrics["bits_per_word"].count for line in table) else ACCURACY


def _headings(useful: Usefulness) -> tuple[str, ...]:
    unit = " %" if useful.factor != 1.0 else ""
    names = (heading for _, heading in useful.beside)
    first = (useful.heading, "deviation", f"worst run{unit}", *names, "rows", "Frechet")
    worst = () if useful is NEXT_WORD else ("worst model's difference",)
    return (*WHERE, "seeds", *first, "difference", *CALLED, *worst, "Frechet difference", *CALLED, "s a cell")


def _where(line: Line) -> list[str]:
    """The first columns of every table."""
    return [
        line.variant,
        f"{line.epsilon:g}",
        "task's" if line.parties is None else str(line.parties),
        "all" if line.records is None else str(line.records),
    ]


def _row(line: Line, useful: Usefulness) -> list[str]:
    def plain(value: float) -> str:
        return "-" if math.isnan(value) else f"{value:.4f}"

    found, rows = line.metrics[useful.metric], line.metrics["rows"].mean
    row = [
        *_where(line),
        str(found.count),
        useful.shown(found.mean),
        useful.shown(found.deviation),
        useful.shown(getattr(found, useful.worst)),
        *(useful.shown(line.metrics[metric].mean) for metric, _ in useful.beside),
        "-" if math.isnan(rows) else f"{rows:.0f}",
        plain(line.metrics["frechet"].mean),
    ]
    for metric, shown in ((useful.metric, useful.shown), ("frechet", plain)):
        gap = line.differences.get(metric)
        if gap is None:
            row += ["reference", "", ""]
        elif gap.pairs == 0:
            row += ["-", "", "none shown"]
        else:
            interval = "-" if math.isnan(gap.low) else f"{shown(gap.low)} to {shown(gap.high)}"
            row += [shown(gap.mean), interval, gap.verdict]
        if metric == "accuracy":
            gaps = [line.differences[model].mean for model in MODELS if model in line.differences]
            row.append(shown(min(gaps, default=math.nan)))
    return [*row, f"{line.seconds:.1f}"]


CENTRALISED = (
    "a centralised reference. One trainer sees every private record and fine-tunes the language model itself; no "
    "federation protects the records, and the number of parties does not matter."
)


SAYS = {
    "accuracy": (
        f"{panel.settings()} Macro-F1 and the recall of the rarest label are the models' means. A classifier that"
        " is trained on the records stands with its own accuracy"
    ),
    "bits_per_word": (
        "Bits per word are what a trigram model that has read the corpus needs for the test texts (lower is better): "
        "the task has no labels"
    ),
}


def explanation(grid: Grid, useful: Usefulness) -> str:
    """What the columns mean, in a few sentences."""
    centralised = ", ".join(variant.name for variant in grid.variants if variant.training is not None)
    return (
        f"Differences are against {grid.baseline}, paired by seed, with Student intervals of 95 % over "
        f"{len(grid.seeds)} seeds; 'none shown' where the interval holds zero. {SAYS[useful.metric]}; Frechet "
        "distances (lower is better) compare equally many texts of corpus and test set. "
        "Every simulation orders the same number of texts at the same (epsilon, delta) and unit; an answer that "
        "repeats a text is asked for again, up to twice, so calls differ where a generator runs out (each cell's file "
        "counts them). No correction is made for the number of comparisons: of twenty intervals one leaves out zero by "
        "chance." + (f" {centralised}: {CENTRALISED}" if centralised else "")
    )


MEASURES = (
    "Means over the seeds, of equally many texts of corpus and test set: MAUVE, density and coverage near 1 are good; "
    "word pairs, self-BLEU and the Vendi score say how different the texts are from each other; wrong labels are "
    "estimated by confident learning. The CSV file has their paired differences."
)


def _measures(line: Line) -> list[str]:
    """A row of the second table."""
    shown = [line.metrics[name].mean for name in HEADINGS]
    return [*_where(line), *("-" if math.isnan(mean) else f"{mean:.4g}" for mean in shown)]


MEASURE_HEADINGS = (*WHERE, *HEADINGS.values())


WEIGHTS = "Means over the seeds of the generators' last weights; methods that give their generators none are left out."


def _weights(table: Sequence[Line]) -> tuple[tuple[str, ...], list[list[str]]]:
    """The third table: its headings, one per generator, and its rows."""
    weighed = [line for line in table if line.weights]
    names = tuple(dict.fromkeys(name for line in weighed for name in line.weights))
    rows = [
        [*_where(line), *(f"{line.weights[name]:.3f}" if name in line.weights else "-" for name in names)]
        for line in weighed
    ]
    return (*WHERE, *names), rows


def markdown(title: str, grid: Grid, table: Sequence[Line], command: str) -> str:
    """A document with the table and the command that made it."""
    useful = usefulness(table)
    rows = [_row(line, useful) for line in table]
    text = [f"# {title}", "", explanation(grid, useful), "", *(f"    {line}" for line in command.splitlines()), ""]
    text += _markdown_table(_headings(useful), rows)
    text += ["", "## Closeness and diversity", "", MEASURES, ""]
    text += _markdown_table(MEASURE_HEADINGS, [_measures(line) for line in table])
    headings, weights = _weights(table)
    if weights:
        text += ["", "## Weights of the generators", "", WEIGHTS, "", *_markdown_table(headings, weights)]
    return "\n".join(text) + "\n"


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    text = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return text + ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]


def to_csv(table: Sequence[Line]) -> str:
    """Every figure at full precision, one row per variant, epsilon and federation."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = [*WHERE]
    for metric in METRICS:
        head += [f"{metric}_{part}" for part in ("mean", "deviation", "lowest", "highest", "seeds")]
        head += [f"{metric}_difference", f"{metric}_low", f"{metric}_high", f"{metric}_called"]
    generators = tuple(dict.fromkeys(name for line in table for name in line.weights))
    writer.writerow([*head, *(f"weight {name}" for name in generators), "seconds"])
    for line in table:
        row: list[object] = [line.variant, line.epsilon, line.parties, line.records]
        for metric in METRICS:
            spread, gap = line.metrics[metric], line.differences.get(metric)
            row += [spread.mean, spread.deviation, spread.lowest, spread.highest, spread.count]
            row += ["", "", "", ""] if gap is None else [gap.mean, gap.low, gap.high, gap.verdict]
        writer.writerow([*row, *(line.weights.get(name, "") for name in generators), line.seconds])
    return out.getvalue()


COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97", "#c77d0a", "#4f5d75", "#0f8b8d", "#9a031e")
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse;font-size:13px}}
td,th{{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left}}pre{{background:#f4f4f4;padding:.6rem;overflow:auto}}
.higher,.lower{{font-weight:600}}svg{{max-width:36rem;display:inline-block;vertical-align:top}}</style>
<h1>{title}</h1><p>{explanation}</p><pre>{command}</pre>{plots}<div style="overflow:auto"><table><thead><tr>{head}</tr>
</thead><tbody>{body}</tbody></table></div><h2>Closeness and diversity</h2><p>{about_measures}</p>
<div style="overflow:auto"><table><thead><tr>{measure_head}</tr></thead><tbody>{measures}</tbody></table></div>
{weights}</html>
"""


def page(title: str, grid: Grid, table: Sequence[Line], command: str) -> str:
    """The table as a self-contained page with a plot of each metric and federation; it loads nothing."""

    def cells(rows: Sequence[Sequence[str]]) -> str:
        return "".join(
            "<tr>" + "".join(f'<td class="{html.escape(c)}">{html.escape(c)}</td>' for c in row) + "</tr>"
            for row in rows
        )

    headings, weights = _weights(table)
    useful = usefulness(table)
    shown = (useful.metric, useful.heading.replace(" %", ", %"), useful.factor)
    plots = "".join(
        _plot(table, federation, grid.epsilons, metric, heading, factor)
        for federation in grid.federations
        for metric, heading, factor in (shown, ("frechet", "Frechet distance", 1.0))
    )
    return PAGE.format(
        title=html.escape(title),
        explanation=html.escape(explanation(grid, useful)),
        command=html.escape(command),
        plots=plots,
        head="".join(f"<th>{html.escape(name)}</th>" for name in _headings(useful)),
        body=cells([_row(line, useful) for line in table]),
        about_measures=html.escape(MEASURES),
        measure_head="".join(f"<th>{html.escape(name)}</th>" for name in MEASURE_HEADINGS),
        measures=cells([_measures(line) for line in table]),
        weights=""
        if not weights
        else f"<h2>Weights of the generators</h2><p>{html.escape(WEIGHTS)}</p>"
        '<div style="overflow:auto"><table><thead><tr>'
        + "".join(f"<th>{html.escape(name)}</th>" for name in headings)
        + f"</tr></thead><tbody>{cells(weights)}</tbody></table></div>",
    )


def _plot(
    table: Sequence[Line],
    federation: tuple[int | None, int | None],
    epsilons: Sequence[float],
    metric: str,
    heading: str,
    factor: float,
) -> str:
    """An SVG of one metric over epsilon: mean and 95 % interval of the mean, one colour per variant."""
    from scipy.stats import t

    chosen = [line for line in table if (line.parties, line.records) == federation]
    chosen = [line for line in chosen if line.metrics[metric].count and not math.isnan(line.metrics[metric].mean)]
    if not chosen:
        return ""
    names = list(dict.fromkeys(line.variant for line in chosen))
    points = []
    for line in chosen:
        spread = line.metrics[metric]
        half = 0.0
        if spread.count > 1:
            half = float(t.ppf((1 + LEVEL) / 2, spread.count - 1)) * spread.deviation / math.sqrt(spread.count)
        points.append((line, factor * spread.mean, factor * half))
    low = min(mean - half for _, mean, half in points)
    high = max(mean + half for _, mean, half in points)
    gap = (high - low) or 1.0
    low, high = low - 0.05 * gap, high + 0.05 * gap
    width, height, left, top, right = 560, 300 + 18 * len(names), 56, 30, 14
    bottom = 260

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    step = (width - left - right) / len(epsilons)
    parties, records = federation
    where = f"{parties or 'task’s'} parties, {records or 'all'} records"
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(heading)}: {html.escape(where)}">',
        f'<text x="{left}" y="18" font-size="13" font-weight="600">{html.escape(heading)}: {html.escape(where)}</text>',
    ]
    parts += [
        f'<line x1="{left}" x2="{width - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#e4e4e4"/>'
        f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" font-size="11" text-anchor="end">{tick:.4g}</text>'
        for tick in np.linspace(low, high, 5)
    ]
    for number, epsilon in enumerate(epsilons):
        centre = left + (number + 0.5) * step
        parts.append(
            f'<text x="{centre:.1f}" y="{bottom + 18}" font-size="12" text-anchor="middle">ε = {epsilon:g}</text>'
        )
    for line, mean, half in points:
        rank = names.index(line.variant)
        x = left + epsilons.index(line.epsilon) * step + (rank + 1) * step / (len(names) + 1)
        colour = COLOURS[rank % len(COLOURS)]
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y(mean - half):.1f}" y2="{y(mean + half):.1f}" stroke="{colour}"'
            f' stroke-width="2"/><circle cx="{x:.1f}" cy="{y(mean):.1f}" r="4" fill="{colour}">'
            f"<title>{html.escape(line.variant)}: {mean:.4g} ± {half:.2g}</title></circle>"
        )
    for rank, name in enumerate(names):
        at = bottom + 40 + 18 * rank
        parts.append(
            f'<circle cx="{left + 4}" cy="{at - 4}" r="4" fill="{COLOURS[rank % len(COLOURS)]}"/>'
            f'<text x="{left + 14}" y="{at}" font-size="12">{html.escape(name)}</text>'
        )
    return "".join(parts) + "</svg>"


def to_json(grid: Grid, table: Sequence[Line]) -> dict[str, Any]:
    """The table as plain JSON values; NaN becomes None."""

    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "baseline": grid.baseline,
        "seeds": list(grid.seeds),
        "rows": [
            {
                "method": line.variant,
                "epsilon": f"{line.epsilon:g}",
                "parties": line.parties,
                "records": line.records,
                "metrics": {
                    name: {
                        "mean": number(s.mean),
                        "deviation": number(s.deviation),
                        "lowest": number(s.lowest),
                        "highest": number(s.highest),
                        "seeds": s.count,
                    }
                    for name, s in line.metrics.items()
                },
                "weights": dict(line.weights),
                "differences": {
                    name: {"mean": number(d.mean), "low": number(d.low), "high": number(d.high), "called": d.verdict}
                    for name, d in line.differences.items()
                },
            }
            for line in table
        ],
    }
