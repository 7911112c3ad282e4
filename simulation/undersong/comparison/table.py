"""The table of a comparison: means, deviations and paired differences with their intervals; Markdown, CSV and HTML.

A difference is called higher or lower only where its 95 % interval, over seeds and paired by seed, leaves out zero.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from markupsafe import Markup

from undersong.comparison.cell import HEADINGS, PRIVATE_ONLY, Cell, Variant
from undersong.run.frames import Frame
from undersong.run.options import ComparisonOptions
from undersong_common.errors import ConfigurationError
from undersong_common.intervals import over_seeds
from undersong_common.program.printed_page import template
from undersong_server import methods as all_methods
from undersong_server.evaluation import panel
from undersong_server.evaluation.panel import AVERAGES
from undersong_server.report import html

LEVEL = 0.95
ENOUGH_SEEDS = 3  # The interval of two seeds reaches nine deviations to either side.
FEW_SEEDS = "Two seeds give an interval that says little, and one gives none: take more seeds."
METRICS = (
    "accuracy",
    *panel.MODELS,
    "balanced_accuracy",
    "macro_f1",
    "rarest_recall",
    *AVERAGES,
    "bits_per_word",
    "rows",
    *HEADINGS,
)


@dataclass(frozen=True)
class ComparisonGrid:
    """The grid of a comparison: every combination of its values is a point.

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
    def of(cls, options: ComparisonOptions, table_variants: Sequence[str] = ()) -> "ComparisonGrid":
        """Makes the grid of the options and checks it. Raises ConfigurationError for one that cannot run.

        Args:
            options: with one number of records for all numbers of parties, or one for each.
            table_variants: variants that the folder's table has already, any of which may be the baseline.
        """
        methods, epsilons, seeds = options.methods, options.epsilons, options.every_seed
        parties, records, baseline = options.parties, options.records, options.baseline
        ConfigurationError.raise_first(
            (
                not methods or not epsilons or not seeds,
                "a comparison needs methods, epsilons and seeds",
                "name at least one of each",
                "empty-grid",
            ),
            (
                any(not epsilon > 0 for epsilon in epsilons),
                f"--epsilon: {', '.join(f'{epsilon:g}' for epsilon in epsilons)} are not all above 0",
                "give positive numbers, or inf for no privacy",
                "no-epsilon",
            ),
            (
                len(records) not in (0, 1, max(1, len(parties))),
                f"--records names {len(records)} sizes for {len(parties)} numbers of parties",
                "give one, or one for each number of parties",
                "other-sizes",
            ),
        )
        variants = tuple(Variant.parse(name) for name in dict.fromkeys(methods))
        names = [variant.name for variant in variants]
        reference = baseline or next((name for name in names if name != PRIVATE_ONLY), names[0])
        if reference not in (*names, *table_variants):
            choices = ", ".join(dict.fromkeys((*names, *table_variants)))
            raise ConfigurationError(
                f"--baseline {reference!r} is not among --methods", f"choose {choices}", code="no-baseline"
            )
        party_counts: list[int | None] = list(parties) or [None]
        record_counts: list[int | None] = list(records) or [None]
        record_counts = record_counts * len(party_counts) if len(record_counts) == 1 else record_counts
        return cls(
            variants,
            tuple(dict.fromkeys(epsilons)),
            tuple(zip(party_counts, record_counts, strict=True)),
            tuple(dict.fromkeys(seeds)),
            reference,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the grid as plain JSON values, which :meth:`from_json` reads."""
        return {
            "methods": [variant.name for variant in self.variants],
            "epsilons": [f"{epsilon:g}" for epsilon in self.epsilons],
            "federations": [list(federation) for federation in self.federations],
            "seeds": list(self.seeds),
            "baseline": self.baseline,
        }

    @classmethod
    def from_json(cls, grid_json: dict[str, Any]) -> "ComparisonGrid":
        return cls(
            tuple(Variant.parse(variant_name) for variant_name in grid_json["methods"]),
            tuple(float(epsilon) for epsilon in grid_json["epsilons"]),
            tuple((parties, records) for parties, records in grid_json["federations"]),
            tuple(grid_json["seeds"]),
            grid_json["baseline"],
        )

    def with_more(self, grid: "ComparisonGrid") -> "ComparisonGrid":
        """Returns this grid with the values of another: this one's first, then the other's; its baseline stays."""
        return ComparisonGrid(
            tuple(dict.fromkeys((*self.variants, *grid.variants))),
            tuple(dict.fromkeys((*self.epsilons, *grid.epsilons))),
            tuple(dict.fromkeys((*self.federations, *grid.federations))),
            tuple(sorted({*self.seeds, *grid.seeds})),
            self.baseline,
        )

    def cell(self, variant: Variant, epsilon: float, federation: tuple[int | None, int | None], seed: int) -> Cell:
        """Returns the cell of a point of the grid, with None for values on which the variant does not depend.

        So points that differ in such values alone share one cell, which is run once.
        """
        parties, records = federation
        if variant.name == PRIVATE_ONLY:
            return Cell(variant, None, None, records, seed)
        # A reference is trained on all records together, so it does not depend on the number of parties.
        if variant.training is not None:
            return Cell(variant, epsilon, None, records, seed)
        if not all_methods.load(variant.method).makes_private_sums:
            return Cell(variant, None, None, None, seed)
        return Cell(variant, epsilon, parties, records, seed)

    def cells(self) -> list[Cell]:
        """Returns every cell once, seed by seed, so that a stopped comparison has whole seeds."""
        points = (
            self.cell(variant, epsilon, federation, seed)
            for seed in self.seeds
            for federation in self.federations
            for epsilon in self.epsilons
            for variant in self.variants
        )
        return list(dict.fromkeys(points))


def summary(grid: ComparisonGrid, figures: Mapping[Cell, Mapping[str, Any]]) -> Frame:
    """Summarises the cells: a row per variant, epsilon and federation in the grid's order, as in the CSV file.

    A variant without a finished cell is left out. ``METRIC_difference`` is from the baseline, with its interval.
    """
    import pandas

    rows = []
    for federation, epsilon in product(grid.federations, grid.epsilons):
        figures_by_variant = {
            variant.name: _by_seed(grid, figures, variant, epsilon, federation) for variant in grid.variants
        }
        for name, seed_figures in figures_by_variant.items():
            if not len(seed_figures):
                continue
            row: dict[str, Any] = dict(zip(CELL_COLUMNS, (name, epsilon, *federation), strict=True))
            for metric in METRICS:
                aggregates = seed_figures[metric].agg(["mean", "std", "min", "max", "count"])
                row |= {f"{metric}_{part}": value for part, value in zip(PARTS, aggregates, strict=True)}
                if name == grid.baseline:
                    row |= _paired_difference(metric, seed_figures, seed_figures[:0]) | {f"{metric}_called": ""}
                else:
                    row |= _paired_difference(metric, seed_figures, figures_by_variant[grid.baseline])
            weights = seed_figures.filter(regex=f"^{WEIGHT}").dropna(how="all").fillna(0.0)
            rows.append(row | weights.mean().to_dict() | {"seconds": seed_figures["seconds"].mean()})
    # Of the type object, numbers of parties stay integers beside None.
    return pandas.DataFrame(rows, dtype=object).infer_objects()


def _by_seed(
    grid: ComparisonGrid,
    figures: Mapping[Cell, Mapping[str, Any]],
    variant: Variant,
    epsilon: float,
    federation: tuple[int | None, int | None],
) -> Frame:
    """Returns a variant's figures, float64, one row per seed; NaN where a figure was not computed."""
    import pandas

    cell_by_seed = {seed: grid.cell(variant, epsilon, federation, seed) for seed in grid.seeds}
    row_by_seed = {
        seed: {
            **{metric: figures[cell].get(metric) for metric in METRICS},
            "seconds": sum(figures[cell]["seconds"].values()),
        }
        | {f"{WEIGHT}{name}": share for name, share in (figures[cell].get("weights") or {}).items()}
        for seed, cell in cell_by_seed.items()
        if cell in figures
    }
    return pandas.DataFrame.from_dict(
        row_by_seed, orient="index", dtype=float, columns=None if row_by_seed else [*METRICS, "seconds"]
    )


def _paired_difference(metric: str, seed_figures: Frame, baseline_figures: Frame) -> dict[str, Any]:
    """Returns the mean difference of one metric, paired by seed, with its Student interval and the word for it.

    The seed fixes private records, their division and the test set. The word is "higher" or "lower" only if the
    interval leaves out zero.
    """
    difference = over_seeds((seed_figures[metric] - baseline_figures[metric]).dropna().tolist())
    difference_word = "none shown"
    if difference.low > 0:
        difference_word = "higher"
    elif difference.high < 0:
        difference_word = "lower"
    parts = {
        "difference": difference.value,
        "low": difference.low,
        "high": difference.high,
        "called": difference_word,
    }
    return {f"{metric}_{part}": value for part, value in parts.items()}


CELL_COLUMNS = ("method", "epsilon", "parties", "records")
PARTS = ("mean", "deviation", "lowest", "highest", "seeds")
WEIGHT = "weight "  # begins the column of a generator's mean weight


@dataclass(frozen=True)
class UsefulnessMeasure:
    """The measure of usefulness in the table's first columns: name, heading, and factor for the screen."""

    metric: str
    heading: str
    factor: float
    digits: int
    worst: str  # the bad end of the values, "lowest" or "highest"
    further_metrics: tuple[tuple[str, str], ...]  # further metrics in the same unit, with their headings


ACCURACY = UsefulnessMeasure(
    "accuracy",
    "panel score %",
    100.0,
    2,
    "lowest",
    (
        *((model, f"{model} %") for model in panel.MODELS),
        ("macro_f1", "macro-F1 %"),
        ("rarest_recall", "rarest label %"),
    ),
)
NEXT_WORD = UsefulnessMeasure("bits_per_word", "bits per word", 1.0, 3, "highest", ())


def usefulness(table: Frame) -> UsefulnessMeasure:
    """Returns the measure of usefulness of a table: the panel score, or the next-word loss without labels."""
    if len(table) and table["bits_per_word_seeds"].any():
        return NEXT_WORD
    return ACCURACY


Columns = list[tuple[str, list[str]]]  # headings, each with its cells


def _format_figures(values: Iterable[float], form: str, factor: float = 1.0) -> list[str]:
    return ["-" if math.isnan(value) else f"{factor * value:{form}}" for value in values]


def _cell_columns(table: Frame) -> Columns:
    """Returns the columns that name a row's cell (method, epsilon, parties, records), with which every table begins."""
    words_for_none = {"parties": "task's", "records": "all"}
    cells = {
        name: [words_for_none[name] if count is None else str(count) for count in table[name]]
        for name in words_for_none
    }
    return [("method", list(table["method"])), ("epsilon", _format_figures(table["epsilon"], "g")), *cells.items()]


def _usefulness_columns(table: Frame, useful: UsefulnessMeasure) -> Columns:
    """Returns the columns of the first table: usefulness, Frechet distance and the differences from the baseline."""

    def format_useful(column: str) -> list[str]:
        return _format_figures(table[column], f".{useful.digits}f", useful.factor)

    def format_plain(column: str) -> list[str]:
        return _format_figures(table[column], ".4f")

    def difference_columns(metric: str, heading: str, show: Callable[[str], list[str]]) -> Columns:
        formatted_columns = [show(f"{metric}_{part}") for part in ("difference", "low", "high")]
        rows = []
        for gap, low, high, called in zip(*formatted_columns, table[f"{metric}_called"], strict=True):
            interval = "-" if low == "-" else f"{low} to {high}"
            rows.append((gap, interval, called) if called else ("reference", "", ""))
        headings = (heading, "95 % interval", "called")
        return [(name, list(cells)) for name, cells in zip(headings, zip(*rows, strict=True), strict=True)]

    metric, unit = useful.metric, " %" if useful.factor != 1.0 else ""
    worst = table[[f"{model}_difference" for model in panel.MODELS]].min(axis=1)
    return [
        *_cell_columns(table),
        ("seeds", _format_figures(table[f"{metric}_seeds"], ".0f")),
        (useful.heading, format_useful(f"{metric}_mean")),
        ("deviation", format_useful(f"{metric}_deviation")),
        (f"worst run{unit}", format_useful(f"{metric}_{useful.worst}")),
        *((heading, format_useful(f"{name}_mean")) for name, heading in useful.further_metrics),
        ("rows", _format_figures(table["rows_mean"], ".0f")),
        ("Frechet", format_plain("frechet_mean")),
        *difference_columns(metric, "difference", format_useful),
        *([("worst model's difference", _format_figures(worst, ".2f", 100.0))] if useful is ACCURACY else []),
        *difference_columns("frechet", "Frechet difference", format_plain),
        ("s a cell", _format_figures(table["seconds"], ".1f")),
    ]


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


def explanation(grid: ComparisonGrid, useful: UsefulnessMeasure) -> str:
    """Explains the columns of the table in a few sentences, which stand beside it."""
    centralised = ", ".join(variant.name for variant in grid.variants if variant.training is not None)
    return (
        f"Differences are against {grid.baseline}, paired by seed, with Student intervals of 95 % over "
        f"{len(grid.seeds)} seeds; 'none shown' where the interval holds zero. "
        + (f"{FEW_SEEDS} " if len(grid.seeds) < ENOUGH_SEEDS else "")
        + f"{SAYS[useful.metric]}; Frechet "
        "distances (lower is better) compare equally many texts of corpus and test set. "
        "Every simulation orders the same number of texts at the same (epsilon, delta) and unit; an answer that "
        "repeats a text is asked for again, up to twice, so calls differ where a generator runs out (each cell's file "
        "counts them). No correction is made for the number of comparisons: of twenty intervals one leaves out zero by "
        "chance." + (f" {centralised}: {CENTRALISED}" if centralised else "")
    )


MEASURES = (
    "Means over the seeds, of equally many texts of corpus and test set: MAUVE, density and coverage near 1 are good; "
    "word pairs and the Vendi score say how different the texts are from each other; doubtful labels are "
    "found by confident learning. The CSV file has their paired differences."
)


AVERAGED = (
    "Means over the seeds of the panel's means, or of the trained classifier: over all labels alike (macro), and "
    "weighted by the labels' numbers of test texts."
)


WEIGHTS = "Means over the seeds of the generators' last weights; methods that give their generators none are left out."


@dataclass(frozen=True)
class TableSection:
    """One table of the document and of the page, with its heading and what its columns mean."""

    heading: str
    note: str
    columns: Columns

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return list(zip(*(cells for _, cells in self.columns), strict=True))


def sections(grid: ComparisonGrid, table: Frame) -> list[TableSection]:
    """Returns the tables in reading order: usefulness, precision and recall, closeness and diversity, any weights."""
    useful = usefulness(table)
    measure_columns = [(heading, _format_figures(table[f"{name}_mean"], ".4g")) for name, heading in HEADINGS.items()]
    tables = [TableSection("", explanation(grid, useful), _usefulness_columns(table, useful))]
    if useful is ACCURACY:
        average_columns = [
            (f"{heading} %", _format_figures(table[f"{name}_mean"], ".2f", 100.0)) for name, heading in AVERAGES.items()
        ]
        tables.append(TableSection("Precision, recall and F1", AVERAGED, [*_cell_columns(table), *average_columns]))
    tables.append(TableSection("Closeness and diversity", MEASURES, [*_cell_columns(table), *measure_columns]))
    weights = table.filter(regex=f"^{WEIGHT}")
    if len(weights.columns):
        weighted_rows = table[weights.notna().any(axis=1)]
        weight_columns = [(name.removeprefix(WEIGHT), _format_figures(weighted_rows[name], ".3f")) for name in weights]
        tables.append(
            TableSection("Weights of the generators", WEIGHTS, [*_cell_columns(weighted_rows), *weight_columns])
        )
    return tables


def markdown(title: str, grid: ComparisonGrid, table: Frame, command: str) -> str:
    """Renders the tables and the command that made them as a Markdown document."""
    return template("undersong.comparison", "comparison.md.j2").render(
        title=title, command=command, sections=sections(grid, table)
    )


def page(title: str, grid: ComparisonGrid, table: Frame, command: str) -> str:
    """Renders the tables, and a plot of each metric and federation, as an HTML page that loads nothing."""
    useful = usefulness(table)
    plotted = (
        (useful.metric, useful.heading.replace(" %", ", %"), useful.factor),
        ("frechet", "Frechet distance", 1.0),
    )
    return template("undersong.comparison", "comparison.html.j2").render(
        title=title,
        command=command,
        sections=sections(grid, table),
        plots=[_draw_plot(grid, table, federation, *plot) for federation in grid.federations for plot in plotted],
    )


def _draw_plot(
    grid: ComparisonGrid,
    table: Frame,
    federation: tuple[int | None, int | None],
    metric: str,
    heading: str,
    factor: float,
) -> Markup:
    """Draws one metric over epsilon: mean and 95 % interval of the mean, one colour per variant."""
    from scipy.stats import t

    series: dict[str, list[tuple[float, float] | None]] = {}
    for row in table.to_dict("records"):
        mean, seeds = row[f"{metric}_mean"], row[f"{metric}_seeds"]
        if (row["parties"], row["records"]) != federation or math.isnan(mean):
            continue
        half_width = 0.0
        if seeds > 1:
            half_width = float(t.ppf((1 + LEVEL) / 2, seeds - 1)) * row[f"{metric}_deviation"] / math.sqrt(seeds)
        points = series.setdefault(row["method"], [None] * len(grid.epsilons))
        points[grid.epsilons.index(row["epsilon"])] = factor * mean, factor * half_width
    parties, records = federation
    title = f"{heading}: {parties or 'task’s'} parties, {records or 'all'} records"
    ticks = [f"ε = {epsilon:g}" for epsilon in grid.epsilons]
    return html.series_chart(title, ticks, series, axis=title, form="points", width=560)


def to_json(grid: ComparisonGrid, table: Frame) -> dict[str, Any]:
    """Returns the table as plain JSON values, a row as in the CSV file; NaN becomes None."""
    rows = table.assign(epsilon=_format_figures(table["epsilon"], "g")).to_json(orient="records", double_precision=15)
    return {"baseline": grid.baseline, "seeds": list(grid.seeds), "rows": json.loads(rows)}
