"""The table of a comparison: means, deviations and paired differences with their intervals; Markdown, CSV and HTML.

A difference is called higher or lower only where its 95 % interval, over seeds and paired by seed, leaves out zero.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from undersong.compare_cell import HEADINGS, PRIVATE_ONLY, Cell, Variant
from undersong.options import ComparisonOptions
from undersong_common.errors import ConfigurationError
from undersong_server import methods as all_methods
from undersong_server.evaluation import panel
from undersong_server.evaluation.intervals import over_seeds
from undersong_server.evaluation.panel import MODELS
from undersong_server.report import charts

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
    """The points of a comparison.

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
        """Plain JSON values; :meth:`from_json` reads them."""
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
    """Mean, sample deviation, lowest and highest value over ``seeds``; ``deviation`` is NaN for a single one."""

    mean: float = math.nan
    deviation: float = math.nan
    lowest: float = math.nan
    highest: float = math.nan
    seeds: int = 0

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            return cls()
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), deviation, float(min(values)), float(max(values)), len(values))


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
        gaps = [ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))]
        found = over_seeds(gaps)
        return cls(found.value, found.low, found.high, len(gaps))

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
    """The measure of usefulness in the table's first columns: its name, its heading, and its factor for the screen."""

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
    return NEXT_WORD if any(line.metrics["bits_per_word"].seeds for line in table) else ACCURACY


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
        str(found.seeds),
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
    """Explains the columns in a few sentences."""
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


WEIGHTS = "Means over the seeds of the generators' last weights; methods that give their generators none are left out."


@dataclass(frozen=True)
class Section:
    """One table of the document and of the page, with its heading and what its columns mean."""

    heading: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        cells = [self.columns, *([cell.replace("|", "/") for cell in row] for row in self.rows)]
        head, *rows = ("| " + " | ".join(row) + " |" for row in cells)
        return "\n".join([head, "|" + "---|" * len(self.columns), *rows])

    def html(self) -> Markup:
        head = Markup("").join(Markup("<th>{}</th>").format(name) for name in self.columns)
        rows = (Markup("").join(Markup('<td class="{0}">{0}</td>').format(cell) for cell in row) for row in self.rows)
        body = Markup("").join(Markup("<tr>{}</tr>").format(row) for row in rows)
        return Markup(
            '<div style="overflow:auto"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
        ).format(head, body)


def sections(grid: Grid, table: Sequence[Line]) -> list[Section]:
    """The tables in reading order: usefulness, closeness and diversity, and weights if a method gives any."""
    useful = usefulness(table)
    found = [
        Section("", explanation(grid, useful), _headings(useful), [_row(line, useful) for line in table]),
        Section("Closeness and diversity", MEASURES, (*WHERE, *HEADINGS.values()), [_measures(line) for line in table]),
    ]
    weighed = [line for line in table if line.weights]
    if weighed:
        names = _generators(weighed)
        rows = [
            [*_where(line), *(f"{line.weights[name]:.3f}" if name in line.weights else "-" for name in names)]
            for line in weighed
        ]
        found.append(Section("Weights of the generators", WEIGHTS, (*WHERE, *names), rows))
    return found


def _generators(table: Sequence[Line]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for line in table for name in line.weights))


def markdown(title: str, grid: Grid, table: Sequence[Line], command: str) -> str:
    """A document with the tables and the command that made them."""
    first, *others = sections(grid, table)
    commands = "\n".join(f"    {line}" for line in command.splitlines())
    parts = [f"# {title}", first.about, commands, first.markdown()]
    for each in others:
        parts += [f"## {each.heading}", each.about, each.markdown()]
    return "\n\n".join(parts) + "\n"


def to_csv(table: Sequence[Line]) -> str:
    """Every figure at full precision, one row per variant, epsilon and federation."""
    out = io.StringIO()
    rows = [_figures(line, _generators(table)) for line in table]
    writer = csv.DictWriter(out, rows[0] if rows else WHERE, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _figures(line: Line, generators: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(WHERE, (line.variant, line.epsilon, line.parties, line.records), strict=True))
    for metric in METRICS:
        gap = line.differences.get(metric)
        row |= {f"{metric}_{part}": value for part, value in asdict(line.metrics[metric]).items()}
        found = ("", "", "", "") if gap is None else (gap.mean, gap.low, gap.high, gap.verdict)
        row |= dict(zip((f"{metric}_{part}" for part in ("difference", "low", "high", "called")), found, strict=True))
    return row | {f"weight {name}": line.weights.get(name, "") for name in generators} | {"seconds": line.seconds}


PAGE = Markup("""<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse;font-size:13px}}
td,th{{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left}}pre{{background:#f4f4f4;padding:.6rem;overflow:auto}}
.higher,.lower{{font-weight:600}}svg{{max-width:36rem;display:inline-block;vertical-align:top}}
svg text{{font-size:12px}}.end{{text-anchor:end}}.middle{{text-anchor:middle}}.strong{{font-weight:600}}
.grid{{stroke:#e4e4e4}}.interval{{stroke-width:2}}{colours}</style>
<h1>{title}</h1><p>{about}</p><pre>{command}</pre>{plots}{tables}</html>
""")
COLOURS = ["#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97", "#c77d0a", "#4f5d75", "#0f8b8d", "#9a031e", "#6b705c", "#808080"]


def page(title: str, grid: Grid, table: Sequence[Line], command: str) -> str:
    """The tables as a self-contained page with a plot of each metric and federation; it loads nothing."""
    first, *others = sections(grid, table)
    useful = usefulness(table)
    plotted = (
        (useful.metric, useful.heading.replace(" %", ", %"), useful.factor),
        ("frechet", "Frechet distance", 1.0),
    )
    tables = [first.html()]
    for each in others:
        tables += [Markup("<h2>{}</h2><p>{}</p>").format(each.heading, each.about), each.html()]
    return PAGE.format(
        title=title,
        about=first.about,
        command=command,
        colours=Markup("".join(f".c{n}{{stroke:{each};fill:{each}}}" for n, each in enumerate(COLOURS))),  # noqa: S704
        plots=Markup("").join(_plot(grid, table, each, *plot) for each in grid.federations for plot in plotted),
        tables=Markup("").join(tables),
    )


def _plot(
    grid: Grid,
    table: Sequence[Line],
    federation: tuple[int | None, int | None],
    metric: str,
    heading: str,
    factor: float,
) -> Markup:
    """One metric over epsilon: mean and 95 % interval of the mean, one colour per variant."""
    from scipy.stats import t

    points = []
    for line in table:
        spread = line.metrics[metric]
        if (line.parties, line.records) != federation or math.isnan(spread.mean):
            continue
        half = 0.0
        if spread.seeds > 1:
            half = float(t.ppf((1 + LEVEL) / 2, spread.seeds - 1)) * spread.deviation / math.sqrt(spread.seeds)
        points.append((line.variant, grid.epsilons.index(line.epsilon), factor * spread.mean, factor * half))
    if not points:
        return Markup("")
    parties, records = federation
    title = f"{heading}: {parties or 'task’s'} parties, {records or 'all'} records"
    return charts.interval_chart(title, [f"ε = {epsilon:g}" for epsilon in grid.epsilons], points)


def to_json(grid: Grid, table: Sequence[Line]) -> dict[str, Any]:
    """The table as plain JSON values; NaN becomes None."""

    def finite(found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: None if isinstance(each, float) and math.isnan(each) else each for name, each in found.items()}

    return {
        "baseline": grid.baseline,
        "seeds": list(grid.seeds),
        "rows": [
            {
                "method": line.variant,
                "epsilon": f"{line.epsilon:g}",
                "parties": line.parties,
                "records": line.records,
                "metrics": {name: finite(asdict(each)) for name, each in line.metrics.items()},
                "weights": dict(line.weights),
                "differences": {
                    name: finite({"mean": each.mean, "low": each.low, "high": each.high}) | {"called": each.verdict}
                    for name, each in line.differences.items()
                },
            }
            for line in table
        ],
    }
