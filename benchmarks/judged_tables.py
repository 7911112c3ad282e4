"""Tables and picture of ``judged``'s cells: paired differences with Student's intervals, put into a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import judged_settings
from undersong_common.errors import ConfigurationError
from undersong_server.evaluation import panel

LEVEL = 0.05
MOST = 4.0  # points that one setting counts at most in a mean over settings
CLEANED, MIXTURE, OURS, PRIVATE = "cleaned-mixture", "mixture+labels", "undersong", "private-only"
UNLABELLED = "no-labels"
BESIDE = ("worst model", "macro-F1", "rarest recall")  # differences that stand beside that of the panel score
AGAINST = (CLEANED, MIXTURE, "wasp", "augpe", "best-single", PRIVATE)
DECLARED = ("declared-tenfold", "declared-a-tenth")

APART = ("off-topic", "thirty-labels", "skewed", "stars", "wrong-records", "few-texts", "low-epsilon")
ALONE = tuple(name for name in judged_settings.BESIDE if name.startswith("only-"))
# Each row: what the sum asks, the method with it, the method without it, and settings that were not used to choose.
SUMS = (
    ("the label histogram", MIXTURE, "mixture", APART),
    ("who writes, with the verdict", OURS, CLEANED, APART),
    ("the verdict", OURS, f"{OURS}~verdict", APART),
    ("where the labels lie, one generator", OURS, f"{OURS}~centres", ALONE),
)

Cells = Mapping[tuple[str, str, int], Mapping[str, Any]]


def key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["setting"], row["method"], row["seed"]


class Paired(NamedTuple):
    """Differences between two methods in one setting, paired by seed, in points.

    Attributes:
        chance: Student's p; ``holm`` is that after Holm over the settings of a table.
        figures: mean difference of every figure that both have.
        worst: lowest of the mean differences of the panel's models.
    """

    setting: str
    seeds: int
    ours: float
    other: float
    low: float
    high: float
    chance: float
    figures: dict[str, float]
    worst: float
    rows: tuple[float, float]
    holm: float = 1.0

    @property
    def difference(self) -> float:
        return self.ours - self.other


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Student's 95 % interval of the mean, and p of a mean of 0; infinitely wide for one value."""
    from scipy.stats import t as student

    if len(values) < 2:
        return -np.inf, np.inf, 1.0
    mean, error = float(np.mean(values)), max(float(np.std(values, ddof=1)) / len(values) ** 0.5, 1e-9)
    half = float(student.isf(LEVEL / 2, len(values) - 1)) * error
    return mean - half, mean + half, 2 * float(student.sf(abs(mean) / error, len(values) - 1))


def pair_by_seed(
    cells: Cells, ours: str, other: str, settings: Sequence[str], seeds: Sequence[int], figure: str = "panel"
) -> list[Paired]:
    """Differences of each setting in which both methods have a seed in common, with Holm's p over them."""
    differences = []
    for name in settings:
        cell_pairs = [
            (cells[name, ours, seed], cells[name, other, seed])
            for seed in seeds
            if (name, ours, seed) in cells and (name, other, seed) in cells
        ]
        if not cell_pairs:
            continue
        figure_names = [
            each for each, value in cell_pairs[0][0].items() if isinstance(value, float) and each != "seconds"
        ]
        means = {
            each: (mean([one[each] for one, _ in cell_pairs]), mean([two[each] for _, two in cell_pairs]))
            for each in figure_names
        }
        figures = {each: one - two for each, (one, two) in means.items()}
        low, high, chance = interval([one[figure] - two[figure] for one, two in cell_pairs])
        rows = mean([one["rows"] for one, _ in cell_pairs]), mean([two["rows"] for _, two in cell_pairs])
        worst = min((figures[model] for model in panel.MODELS if model in figures), default=np.nan)
        differences.append(Paired(name, len(cell_pairs), *means[figure], low, high, chance, figures, worst, rows))
    holm_p = 0.0
    for rank, row_number in enumerate(sorted(range(len(differences)), key=lambda i: differences[i].chance)):
        holm_p = max(holm_p, min(1.0, differences[row_number].chance * (len(differences) - rank)))
        differences[row_number] = differences[row_number]._replace(holm=holm_p)
    return differences


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


class Pooled(NamedTuple):
    """Mean difference over settings, each capped at ``MOST``, with Student's interval over them, and the median."""

    mean: float
    low: float
    high: float
    median: float

    @classmethod
    def of(cls, rows: Sequence[Paired]) -> Pooled:
        capped = [min(row.difference, MOST) for row in rows]
        return cls(mean(capped), *interval(capped)[:2], float(np.median(capped)))


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(x)} |" for x in lines)])


def mark_name(setting: str) -> str:
    return f"{setting} *" if setting in judged_settings.CHOSEN_ON else setting


def labelled_settings() -> list[str]:
    return [name for name in judged_settings.SETTINGS if name != UNLABELLED]


def worth_table(cells: Cells, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Returns the table of each method minus the cleaned mixture, over all settings and those not used to choose."""
    lines = []
    unused_settings = [name for name in labelled_settings() if name not in judged_settings.CHOSEN_ON]
    for method in methods:
        for title, settings in (("all", labelled_settings()), ("not used to choose", unused_settings)):
            rows = pair_by_seed(cells, method, CLEANED, settings, seeds)
            if method == CLEANED or not rows:
                continue
            pooled, lowest_row = Pooled.of(rows), min(rows, key=lambda row: row.difference)
            lines.append(
                [
                    *(f"`{method}`", f"{title} ({len(rows)})", f"**{pooled.mean:+.2f}**"),
                    *(f"{pooled.low:+.2f} to {pooled.high:+.2f}", f"{pooled.median:+.2f}"),
                    f"{lowest_row.difference:+.1f} ({lowest_row.setting})",
                    *(f"{mean(values):+.1f}" for values in zip(*map(_beside, rows), strict=True)),
                ]
            )
    heads = ["method", "settings", "mean difference", "interval over settings", "median", "lowest", *BESIDE]
    return table(heads, lines)


def sums_table(cells: Cells) -> str:
    """Returns the table of what each private sum is worth: scores with it minus scores without it."""
    lines = []
    for name, ours, other, settings in SUMS:
        pairs = [
            float(row["panel"]) - float(cells[setting, other, seed]["panel"])
            for (setting, method, seed), row in cells.items()
            if method == ours and setting in settings and (setting, other, seed) in cells
        ]
        low, high, _ = interval(pairs) if pairs else (0.0, 0.0, 1.0)
        difference_cells = (f"**{mean(pairs):+.2f}**", f"{low:+.2f} to {high:+.2f}") if pairs else ("-", "-")
        lines.append([name, f"`{ours}` - `{other}`", str(len(pairs)), *difference_cells])
    return table(("sum", "difference", "pairs", "points", "95 % interval"), lines)


def _beside(row: Paired) -> tuple[float, float, float]:
    return row.worst, row.figures["macro_f1"], row.figures["rarest_recall"]


def scores_table(cells: Cells, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Returns the panel's score of each method and setting, means over seeds."""
    lines = []
    for name in labelled_settings():
        scores_by_method = [
            [cells[name, method, seed]["panel"] for seed in seeds if (name, method, seed) in cells]
            for method in methods
        ]
        lines.append([mark_name(name), *(f"{mean(each):.1f}" if each else "-" for each in scores_by_method)])
    return table(["setting", *(f"`{method}`" for method in methods)], lines)


def goals_table(cells: Cells, seeds: Sequence[int]) -> str:
    """Returns the table of goals of the default method, with the measured figures and whether each goal is met."""
    mixture, cleaned = (pair_by_seed(cells, OURS, other, labelled_settings(), seeds) for other in (MIXTURE, CLEANED))
    if not mixture or not cleaned:
        return "Not measured yet."
    pooled_mixture, pooled_cleaned = Pooled.of(mixture), Pooled.of(cleaned)
    lowest = min(mixture, key=lambda row: row.difference)
    lowest_end = min(mixture, key=lambda row: row.low)
    significant_losses = [row.setting for row in mixture if row.holm < LEVEL and row.difference < 0]
    f1, recall = (min(mixture, key=lambda row: row.figures[name]) for name in ("macro_f1", "rarest_recall"))
    declared_losses = [abs(row.difference) for row in compare_declared(cells, seeds)]
    goal_rows = [
        (
            "minus mixture with label shares, mean",
            "at least +1.0",
            f"{pooled_mixture.mean:+.2f}",
            pooled_mixture.mean >= 1.0,
        ),
        ("the same, median", "at least +0.5", f"{pooled_mixture.median:+.2f}", pooled_mixture.median >= 0.5),
        ("minus cleaned mixture, mean", "at least +0.3", f"{pooled_cleaned.mean:+.2f}", pooled_cleaned.mean >= 0.3),
        ("the same, lower end over settings", "above 0", f"{pooled_cleaned.low:+.2f}", pooled_cleaned.low > 0),
        (
            *("lowest setting minus mixture with label shares", "at least -0.5"),
            *(f"{lowest.difference:+.1f} ({lowest.setting})", lowest.difference >= -0.5),
        ),
        (
            "lowest lower end of a setting",
            "at least -2.0",
            f"{lowest_end.low:+.1f} ({lowest_end.setting})",
            lowest_end.low >= -2.0,
        ),
        (
            "settings significantly below after Holm",
            "none",
            ", ".join(significant_losses) or "none",
            not significant_losses,
        ),
        *(
            (title, "at least -2.0", f"{row.figures[name]:+.1f} ({row.setting})", row.figures[name] >= -2.0)
            for title, name, row in (
                ("lowest macro-F1 minus mixture's", "macro_f1", f1),
                ("lowest rarest recall minus mixture's", "rarest_recall", recall),
            )
        ),
    ]
    if declared_losses:
        what = "declared wrong minus declared right, farthest"
        goal_rows.append((what, "within 1.0", f"{max(declared_losses):.1f}", max(declared_losses) <= 1.0))
    if against_private := pair_by_seed(cells, OURS, PRIVATE, labelled_settings(), seeds):
        gap = -Pooled.of(against_private).mean
        goal_rows.append(("private records alone minus ours, mean", "at most +2.0", f"{gap:+.2f}", gap <= 2.0))
    lines = [[what, goal, value, "yes" if holds else "**no**"] for what, goal, value, holds in goal_rows]
    return table(["what", "goal", "found", "holds"], lines)


def comparison_table(rows: Sequence[Paired]) -> str:
    """Returns the table of one method minus another, a row for each setting."""
    heads = ["setting", "seeds", "texts", "its texts", "score", "its score", "difference", "95 % interval", "p, Holm"]
    lines = [
        [
            *(mark_name(row.setting), str(row.seeds), f"{row.rows[0]:.0f}", f"{row.rows[1]:.0f}"),
            *(
                f"{row.ours:.1f}",
                f"{row.other:.1f}",
                f"**{row.difference:+.1f}**",
                f"{row.low:+.1f} to {row.high:+.1f}",
            ),
            f"{row.holm:.3f}" if row.holm >= 0.001 else "< 0.001",
            *(f"{value:+.1f}" for value in _beside(row)),
        ]
        for row in rows
    ]
    return table([*heads, *BESIDE], lines)


def differences_table(panels: Mapping[str, Sequence[Paired]]) -> str:
    """Returns a row per setting: the default method minus each baseline; bold where Holm's p is below 5 %."""
    settings = dict.fromkeys(row.setting for rows in panels.values() for row in rows)
    columns = [{row.setting: row for row in rows} for rows in panels.values()]
    lines = [[mark_name(name), *(_difference(column.get(name)) for column in columns)] for name in settings]
    return table(["setting", *(f"minus `{name}`" for name in panels)], lines)


def _difference(row: Paired | None) -> str:
    if row is None:
        return "-"
    number = f"{row.difference:+.1f}"
    bold_number = f"**{number}**" if row.holm < LEVEL else number
    return f"{bold_number} ({row.low:+.1f} to {row.high:+.1f})"


def unlabelled_table(cells: Cells, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Returns the table of the setting without labels: next words, MAUVE, and differences from the mixture."""
    lines = []
    for method in methods:
        method_cells = [cells[UNLABELLED, method, seed] for seed in seeds if (UNLABELLED, method, seed) in cells]
        if not method_cells:
            continue
        line = [f"`{method}`", str(len(method_cells)), f"{mean([cell['rows'] for cell in method_cells]):.0f}"]
        for figure, digits in (("accuracy", 2), ("bits", 3), ("mauve", 1)):
            rows = pair_by_seed(cells, method, "mixture", [UNLABELLED], seeds, figure)
            line.append(f"{mean([cell[figure] for cell in method_cells]):.{digits}f}")
            if method != "mixture" and rows:
                row = rows[0]
                line[-1] += f" ({row.difference:+.{digits}f}; {row.low:+.{digits}f} to {row.high:+.{digits}f})"
        lines.append(line)
    return table(["method", "seeds", "texts", "next-word accuracy, %", "bits per word", "MAUVE, %"], lines)


def compare_declared(cells: Cells, seeds: Sequence[int]) -> list[Paired]:
    """Compares the default method with wrongly and rightly declared numbers of records, paired by seed."""
    right = {
        (name, "right", seed): cells["mixed", OURS, seed]
        for name in DECLARED
        for seed in seeds
        if ("mixed", OURS, seed) in cells
    }
    return pair_by_seed({**cells, **right}, OURS, "right", list(DECLARED), seeds)


def describe_commits(cells: Cells, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Says by subject at which commits the cells were measured, and what they cost."""
    methods_by_subject: dict[str, set[str]] = {}
    for (_, method, seed), row in cells.items():
        if method in methods and seed in seeds:
            methods_by_subject.setdefault(row["program"], set()).add(method)
    subject_words = [f"`{line}` ({', '.join(sorted(names))})" for line, names in methods_by_subject.items()]
    seconds = [row["seconds"] for row in cells.values()]
    cost = f"{len(seconds)} cells, {sum(seconds) / 60:.0f} minutes of one core without embedding"
    return f"Commits, by the first line of their messages: {'; '.join(subject_words)}. {cost}."


def describe_missing(cells: Cells, methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Says how many cells of each method are not measured yet, and in which settings."""
    missing_words = []
    for method in methods:
        settings = labelled_settings() if method in (CLEANED, MIXTURE) else list(judged_settings.SETTINGS)
        unmeasured = [name for name in settings for seed in seeds if (name, method, seed) not in cells]
        if unmeasured:
            missing_words.append(
                f"`{method}` {len(unmeasured)} of {len(settings) * len(seeds)} ({', '.join(dict.fromkeys(unmeasured))})"
            )
    return "Missing cells: " + ("; ".join(missing_words) or "none") + "."


def draw_picture(panels: Mapping[str, Sequence[Paired]]) -> str:
    """Draws the differences with their intervals as SVG, one panel for each baseline."""
    cases = list(dict.fromkeys(row.setting for rows in panels.values() for row in rows))
    case_rows = {case: index for index, case in enumerate(cases)}
    step, left, width, top = 20, 190, 200, 46
    ends = [end for rows in panels.values() for row in rows for end in (row.low, row.high) if np.isfinite(end)]
    low, high = max(-10.0, min(-1.0, *ends)), min(15.0, max(1.0, *ends))
    height = top + step * len(cases) + 34

    def at(value: float) -> float:
        return (min(max(value, low), high) - low) / (high - low) * (width - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width * len(panels)} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{left + width * len(panels)}" height="{height}" fill="white"/>',
    ]
    for name, index in case_rows.items():
        y = top + step * index + 14
        parts.append(f'<text x="8" y="{y}">{name}</text>')
    for number, (title, rows) in enumerate(panels.items()):
        x = left + width * number
        bottom = top + step * len(cases) + 4
        parts.append(f'<text x="{x}" y="18" font-weight="bold">minus {title}</text>')
        parts.append(f'<text x="{x}" y="34" fill="#555">points of panel score</text>')
        parts.append(f'<line x1="{x + at(0):.1f}" x2="{x + at(0):.1f}" y1="40" y2="{bottom}" stroke="#999"/>')
        ticks = sorted({low, 0.0, high})
        parts += [
            f'<text x="{x + at(tick):.1f}" y="{bottom + 14}" text-anchor="middle" fill="#555">{tick:.0f}</text>'
            for tick in ticks
        ]
        for row in rows:
            y = top + step * case_rows[row.setting] + 10
            colour = "#1a7f37" if row.low > 0 else "#b3261e" if row.high < 0 else "#555"
            x1, x2, middle = (x + at(value) for value in (row.low, row.high, row.difference))
            parts.append(
                f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
                f'<circle cx="{middle:.1f}" cy="{y}" r="3.5" fill="{colour}"/>'
            )
            if row.difference > high:
                parts.append(
                    f'<text x="{x + at(high) - 4:.1f}" y="{y - 5}" text-anchor="end">+{row.difference:.0f}</text>'
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


def fill(page: Path, rows: Sequence[Mapping[str, Any]], methods: Sequence[str], seeds: Sequence[int]) -> None:
    """Puts every table between its marks on the page, and writes the picture into the folder ``pictures`` beside it.

    Raises ConfigurationError if the page lacks a mark.
    """
    cells = {key(row): row for row in rows}
    parts = {
        "worth": worth_table(cells, methods, seeds),
        "goals": goals_table(cells, seeds),
        "scores": scores_table(cells, methods, seeds),
        "unlabelled": unlabelled_table(cells, methods, seeds),
        "sums": sums_table(cells),
        "programs": "\n\n".join(
            (describe_commits(cells, methods, seeds), describe_missing(cells, methods, seeds), panel.settings())
        ),
    }
    panels = {other: pair_by_seed(cells, OURS, other, labelled_settings(), seeds) for other in AGAINST}
    parts["differences"] = differences_table(panels)
    fill_marks(page, parts)
    target = page.parent / "pictures" / "judged.svg"
    target.write_text(draw_picture({name: panels[name] for name in AGAINST[:3]}), encoding="utf-8")


def fill_marks(page: Path, parts: Mapping[str, str]) -> None:
    """Puts each text of ``parts`` between the marks of its name. Raises ConfigurationError if the page lacks a mark."""
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        mark = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not mark.search(text):
            raise ConfigurationError(
                f"{page}: has no mark for {name!r}", f"write <!-- begin {name} --> and <!-- end -->"
            )
        text = mark.sub(lambda at, content=content: f"{at[1]}{content}\n{at[2]}", text)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")
