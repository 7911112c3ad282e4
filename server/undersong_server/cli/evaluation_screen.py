"""``undersong evaluate`` as a person reads it."""

import math
from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from undersong_common.intervals import Interval, over_seeds
from undersong_common.text.overlap import CONTAINED, JACCARD, RUN_WORDS, ClosestRecords, Overlap
from undersong_common.text.personal_data import PersonalData
from undersong_server.evaluation import panel
from undersong_server.evaluation.evaluate import NOT_PRIVATE, Distances, EvaluationReport, Membership
from undersong_server.evaluation.metrics import LabelErrors
from undersong_server.evaluation.panel import FIGURES

FAILED_ATTACKS = (
    "An attack that finds nothing proves nothing: others may find more. No figure here is a privacy guarantee."
)
SHOWN_ROWS = 12
SHOWN_CONFUSION = 12  # a wider matrix does not fit a terminal; --json has it whole


def render(report: EvaluationReport) -> RenderableType:
    """Tables in reading order: usefulness, closeness, overlap, and what they mean."""
    parts: list[RenderableType] = []
    if report.trained:
        parts += [_task_models(report), Text(panel.settings(), style="dim")]
        if report.trained[0].groups:
            parts.append(_groups(report))
        if len(report.trained[0].scores.models["head"].labels) <= SHOWN_CONFUSION:
            parts.append(_confusion(report))
    parts.append(_distances(report))
    if report.overlap is not None:
        parts.append(_overlap(report.overlap, report.overlap_base_rate))
    if report.closest is not None:
        parts.append(_closest(report.closest))
    parts.extend(_membership(attack) for attack in report.membership)
    if report.closest is not None or report.membership:
        parts.append(Text(FAILED_ATTACKS))
    if report.personal is not None:
        parts.append(_personal(report.personal))
    if report.label_errors is not None:
        parts.append(_label_errors(report.label_errors, report.label_error_shares))
    parts.extend(Text(f"• {note}") for note in report.notes)
    parts.append(Panel(NOT_PRIVATE, title="not private", border_style="yellow"))
    return Group(*parts)


def _table(title: str, *columns: str, rows: Iterable[Sequence[str]] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _task_models(report: EvaluationReport) -> Table:
    seed_count = len(report.trained[0].runs)
    title = "Task models on the test file" + (
        f" (means of {seed_count} seeds, 95 % intervals)" if seed_count > 1 else ""
    )
    rows = [
        [
            *(escape(trained.data), f"{trained.rows:,}"),
            *(trained.interval(figure).percent_words for figure in FIGURES),
            escape(trained.description),
        ]
        for trained in report.trained
    ]
    return _table(
        title, *("trained on", "rows", "accuracy", "balanced", "macro-F1", "rarest label", "model"), rows=rows
    )


def _groups(report: EvaluationReport) -> Table:
    columns = [f"{escape(trained.data)}, {escape(trained.model)}" for trained in report.trained]
    rows = [
        [
            escape(name),
            f"{runs[0].rows:,}",
            *(trained.interval("accuracy", name).percent_words for trained in report.trained),
        ]
        for name, runs in report.trained[0].groups.items()
    ]
    return _table("Accuracy by group of the test file", "group", "texts", *columns, rows=rows)


def _confusion(report: EvaluationReport) -> Table:
    scores = report.trained[0].scores.models["head"]

    def cell(row_number: int, column_number: int, count: int) -> str:
        if row_number == column_number:
            return f"[bold]{count}[/]"
        if count:
            return str(count)
        return "[dim]·[/]"

    return _table(
        f"Confusion of one model, trained on {report.trained[0].data} (rows true, columns predicted)",
        *("", *(escape(label[:10]) for label in scores.labels)),
        rows=[
            [
                escape(label),
                *(
                    cell(row_number, column_number, count)
                    for column_number, count in enumerate(scores.confusion[row_number])
                ),
            ]
            for row_number, label in enumerate(scores.labels)
        ],
    )


def _distances(report: EvaluationReport) -> Table:
    figures: dict[str, Callable[[Distances], tuple[float | None, ...]]] = {
        "Frechet distance (0 = same)": lambda d: (d.frechet,),
        "precision: synthetic among the real": lambda d: (d.precision,),
        "recall: real among the synthetic": lambda d: (d.recall,),
        "density (about 1 = as dense as the real)": lambda d: (d.density,),
        "coverage: real with a synthetic one near": lambda d: (d.coverage,),
        "MAUVE (1 = same)": lambda d: (d.mauve,),
        "different word pairs, synthetic / real": lambda d: (d.distinct_bigrams, d.reference_distinct_bigrams),
        "Vendi score, synthetic / real (texts in effect)": lambda d: (d.vendi, d.reference_vendi),
        "bits per word, before / after the corpus": lambda d: (d.next_word_before, d.next_word_after),
        "self-similarity, synthetic / real": lambda d: (d.self_similarity, d.reference_self_similarity),
        "length divergence (bits, 0 to 1)": lambda d: (d.length,),
        "label divergence (bits, 0 to 1)": lambda d: (d.label,),
    }
    distances = report.distances
    return _table(
        "Synthetic texts beside real ones",
        *("", *(d.reference for d in distances)),
        rows=[
            ["texts compared (equal numbers)", *(f"{d.rows:,}" for d in distances)],
            *(
                [name, *(" / ".join(map(_number, figure_of(d))) for d in distances)]
                for name, figure_of in figures.items()
            ),
        ],
    )


def _label_errors(label_errors: LabelErrors, shares: Sequence[float]) -> Text:
    row_words = _list_rows([row + 1 for row in label_errors.suspected.tolist()]) or "none"
    share_words = over_seeds(shares).percent_words
    return Text(f"About {share_words} of the synthetic labels seem to be wrong (confident learning); rows: {row_words}")


def _closest(closest_records: ClosestRecords) -> Table:
    return _table(
        f"Distance to the closest of {closest_records.records:,} private training records,"
        " and of as many held-out ones",
        *("", "training", "held out"),
        rows=[
            *(
                [
                    name,
                    _number(closest_records.training[figure_number]),
                    _number(closest_records.holdout[figure_number]),
                ]
                for figure_number, name in enumerate(("nearest 5 % of the texts (1 - cosine)", "half of the texts"))
            ),
            ["texts nearer to this side (about 50 %: nothing copied)", closest_records.closer.percent_words, ""],
        ],
    )


def _personal(personal_data: PersonalData) -> Table:
    columns = [
        "",
        "found",
        "different",
        *(["of these in the private file"] if personal_data.in_private is not None else []),
    ]
    table = _table("Names, numbers and dates in the synthetic texts", *columns)
    for kind, count in personal_data.found.items():
        if personal_data.in_private is None:
            private_counts = []
        else:
            private_counts = [f"{personal_data.in_private[kind]:,}"]
        table.add_row(kind, f"{count:,}", f"{personal_data.different[kind]:,}", *private_counts)
    if personal_data.private_rows:
        table.add_row("rows with one that the private file holds", _list_rows(personal_data.private_rows), "", "")
    table.caption = personal_data.finder
    table.caption_justify = "left"
    return table


def _overlap(overlap: Overlap, test_overlap: Overlap | None) -> Table:
    sides = [overlap] if test_overlap is None else [overlap, test_overlap]
    names = (
        "word for word",
        f"nearly (pairs {JACCARD:.0%} alike, or {CONTAINED:.0%} of 8-word runs)",
        f"{RUN_WORDS} or more words in a row",
    )
    lists = [(side.verbatim, side.near_verbatim, side.shared_run) for side in sides]
    rows = [
        [
            name,
            *(f"{len(row_lists[kind]):,} of {side.rows:,}" for side, row_lists in zip(sides, lists, strict=True)),
            _list_rows(lists[0][kind]),
        ]
        for kind, name in enumerate(names)
    ]
    return _table(
        "Overlap with the private file (rows of the synthetic file, counted from 1)",
        *("", *("synthetic texts", "test texts, by chance")[: len(sides)], "rows"),
        rows=[*rows, ["longest shared run", *(f"{side.longest_run} words" for side in sides), ""]],
    )


def _membership(membership: Membership) -> Table:
    has_several_seeds = membership.attacks[0].auc_over_seeds is not None
    return _table(
        f"Membership inference on the model trained on {escape(membership.data)}: {membership.members:,} members,"
        f" {membership.nonmembers:,} others (95 % intervals)",
        *("attack", "members found", "others taken for one", "AUC (guessing: 0.5)"),
        *(["AUC over the seeds"] if has_several_seeds else []),
        *("balanced accuracy (0.5)", "true positives at 1 % false (0.01)"),
        rows=[
            [
                attack.name,
                f"{attack.found} of {attack.judged_members}",
                f"{attack.false_alarms} of {attack.judged_others}",
                _interval(attack.auc),
                *([_interval(attack.auc_over_seeds)] if attack.auc_over_seeds is not None else []),
                *map(_interval, (attack.accuracy, attack.true_positives)),
            ]
            for attack in membership.attacks
        ],
    )


def _interval(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _list_rows(rows: Sequence[int]) -> str:
    if len(rows) <= SHOWN_ROWS:
        remainder = ""
    else:
        remainder = f" … ({len(rows) - SHOWN_ROWS} more in --json)"
    return ", ".join(map(str, rows[:SHOWN_ROWS])) + remainder


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.3f}"
