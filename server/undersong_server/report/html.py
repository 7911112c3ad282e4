"""``report.html``: one file, no network, readable without scripts, printed as it is read.

The page carries its own style and one small script, and a content security policy that allows that script by its hash
and nothing else: even a text that slipped past the escaping could not run or load anything.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any, Literal

import numpy as np
from markupsafe import Markup, escape

from undersong_common.program.printed_page import template
from undersong_protocol.agreement import words
from undersong_server.evaluation import panel
from undersong_server.pool import Sample
from undersong_server.report.answers import IN_BROWSER, OurWords, answers
from undersong_server.report.check_words import CHECK_WORDS
from undersong_server.report.data import EQUAL_WEIGHTS, USEFUL, GeneratorUse, Measure, ReportData, number
from undersong_server.report.rows import EXAMPLES, TITLE, describe_rows, example_rows, length_at, quote_rows
from undersong_server.report.sum_answers import GIVE_OR_TAKE, SUM_ANSWERS
from undersong_server.report.writers import COLUMNS, WRITERS

SHOWN_TEXTS = 300  # texts of the corpus in the report at most
FILES = "The files"
REPORT = "report.html"
LENGTH_GROUPS = 24  # bars of the chart of lengths at most
ROUNDS = (
    "Rounds count from 0 in the column round of the texts' own files, and from 1 everywhere else: 0 there is round 1."
)


def render_html(data: ReportData) -> str:
    """Renders the report. The same data give the same bytes."""
    script_text = _own_file("report.js")
    text_counts = data.counts()
    generator_colour = {name: colour(place) for place, name in enumerate(data.generators)}
    return template("undersong_server.report", "report.html.j2", number=number, coded=_mark_code).render(
        data=data,
        privacy=data.privacy,
        style=Markup(_own_file("report.css")),  # noqa: S704 - our own file
        script=Markup(script_text),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(script_text.encode("utf-8")).digest()).decode("ascii"),
        labels=_label_rows(data, text_counts),
        generators=[
            (name, generator_colour[name], int(text_count))
            for name, text_count in zip(data.generators, text_counts.sum(0), strict=True)
        ],
        kinds=len({sample.kind for sample in data.samples}),
        in_browser=IN_BROWSER,  # The page has its box for the files in the place of this paragraph.
        check_words=json.dumps(dict(CHECK_WORDS)),
        copied_words=CHECK_WORDS["copied"],
        files_title=FILES,
        rounds_words=ROUNDS,
        rows_title=TITLE,
        rows_words=describe_rows(data),
        writers_title=WRITERS,
        writer_columns=COLUMNS,
        sums_title=SUM_ANSWERS,
        sums_words=GIVE_OR_TAKE,
        answers=answers(data),
        demonstration=data.terms.describe_demonstration(),
        signed_plan=words.SIGNED_PLAN,
        further_measures=_list_further_measures(data),
        panel_settings=panel.settings(),
        weight_chart=shares_chart(
            "Weight of each generator by round",
            "round",
            data.generators,
            data.weights,
            _weight_noise(data),
            first_number=1,
        ),
        weights_moved=any(tuple(row) != tuple(data.weights[0]) for row in data.weights),
        equal_weights=EQUAL_WEIGHTS if data.has_equal_weights else "",
        epsilon_chart=epsilon_chart(data.privacy.epsilon_after, data.privacy.promise.epsilon)
        if data.privacy.is_private
        else "",
        length_chart=_draw_lengths(data),
        example_rows=example_rows(data),
        examples_words=EXAMPLES,
        shown=[
            {"sample": sample, "colour": generator_colour[sample.generator]}
            for sample in spread(data.samples, SHOWN_TEXTS)
        ],
        show_labels=any(data.label_names),
        fault_columns=tuple(_count_faults(data.usage)),
    )


def _list_further_measures(data: ReportData) -> list[Measure]:
    """The measures that the table of the task models does not show."""
    shown_names = {name for _, name, _ in USEFUL} if data.published_accuracy else set()
    return [measure for measure in data.measures if measure.name not in shown_names]


FAULT_NAMES = ("refused", "cut", "duplicate", "near duplicate", "asked again", "dropped")


def _count_faults(usage: Sequence[GeneratorUse]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields a column of the generators' table with its count by generator, unless every count is 0."""
    fault_rows = {
        generator_use.name: (*generator_use.faults, generator_use.count.retried, generator_use.count.dropped)
        for generator_use in usage
    }
    for fault_index, fault_name in enumerate(FAULT_NAMES):
        count_by_generator = {generator: generator_row[fault_index] for generator, generator_row in fault_rows.items()}
        if any(count_by_generator.values()):
            yield fault_name, count_by_generator


def _mark_code(sentence: str) -> Markup:
    """Escapes a sentence for HTML; code and links in :class:`OurWords` become elements."""
    escaped_sentence = str(escape(sentence))
    if isinstance(sentence, OurWords):
        escaped_sentence = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped_sentence)
        escaped_sentence = re.sub(r"\[([^]]+)\]\((#[a-z-]+)\)", r'<a href="\2">\1</a>', escaped_sentence)
    return Markup(escaped_sentence)  # noqa: S704 - escaped above


def _weight_noise(data: ReportData) -> tuple[tuple[float, ...], ...]:
    """Returns the standard errors of the weights by round, which are known of the last round only."""
    return (*(() for _ in data.weights[1:]), data.weight_errors) if data.weight_errors and data.weights else ()


def _draw_lengths(data: ReportData) -> Markup:
    """Draws the number of texts by their length in words; the longest hundredth shares the last place."""
    if not data.samples:
        return Markup("")
    word_counts = np.array([len(sample.text.split()) for sample in data.samples])
    median_words = length_at(word_counts, 0.5)
    lengths = np.minimum(word_counts, math.ceil(np.quantile(word_counts, 0.99)))
    group_words = -(-(int(np.ptp(lengths)) + 1) // LENGTH_GROUPS)
    group_counts = np.bincount((lengths - lengths.min()) // group_words)
    group_starts = [str(lengths.min() + group_words * group_index) for group_index in range(len(group_counts))]
    group_starts[-1] += " or more" if word_counts.max() > lengths.max() else ""
    return series_chart(
        f"Lengths of the texts in words, median {median_words}",
        group_starts,
        {"texts": [(float(group_count), 0.0) for group_count in group_counts]},
        axis=f"words (median {median_words})",
        measure="texts",
        form="bars",
        height=220,
    )


def spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Draws at most ``count`` samples, in turn from every (label, generator, round); the same at every call."""
    positions_by_group: dict[tuple[str, str, int], list[int]] = {}
    for position, sample in enumerate(samples):
        positions_by_group.setdefault((sample.label, sample.generator, sample.round), []).append(position)
    rng = np.random.default_rng(0)  # The choice of samples is no secret and should not change from view to view.
    shuffled_groups = [rng.permutation(group_positions).tolist() for group_positions in positions_by_group.values()]
    drawn_positions: list[int] = []
    while shuffled_groups and len(drawn_positions) < count:
        drawn_positions.extend(members.pop() for members in shuffled_groups)
        shuffled_groups = [members for members in shuffled_groups if members]
    return [samples[drawn_positions[drawn_place]] for drawn_place in rng.permutation(min(count, len(drawn_positions)))]


def _own_file(name: str) -> str:
    return resources.files("undersong_server.report").joinpath(name).read_text(encoding="utf-8")


def _label_rows(data: ReportData, text_counts: np.ndarray) -> list[dict[str, object]]:
    largest_label_count = max(1, int(text_counts.sum(axis=1).max(initial=0)))
    return [
        {
            "name": label_name or "(no label)",
            "count": int(label_counts.sum()),
            "parts": [
                (
                    colour(generator_index),
                    100 * int(cell_count) / largest_label_count,
                    f"{data.generators[generator_index]}: {int(cell_count)}",
                )
                for generator_index, cell_count in enumerate(label_counts)
                if cell_count
            ],
        }
        for label_name, label_counts in zip(data.label_names, text_counts, strict=True)
    ]


# The dataset card: ``README.md`` beside the corpus, for whoever receives it. Its words are in ``card.md.j2``.

_ESCAPED = "\\`*_{}[]#|~"  # These signs turn names into markup. Parentheses make no link without brackets.


def render_card(data: ReportData) -> str:
    """Renders the dataset card: Markdown with the usual YAML header. Counts are of the synthetic texts only."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("undersong_server.report", ""),
        autoescape=False,  # noqa: S701 - Markdown, whose every value ``finalize`` escapes
        finalize=lambda value: value if isinstance(value, Markup | OurWords) else escape_markdown(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: Markup(number(value)),  # noqa: S704 - digits
        "plain": lambda value: Markup(" ".join(value.split())),  # noqa: S704 - a line of code, which nothing can end
        "percent": lambda value: f"{100 * value:.1f} %",
        "yaml": _quote_yaml,
    }
    text_counts = data.counts().tolist()
    card_text = environment.get_template("card.md.j2").render(
        data=data,
        rounds_words=ROUNDS,
        files_title=FILES,
        rows_title=TITLE,
        rows_words=describe_rows(data),
        writers_title=WRITERS,
        writer_columns=COLUMNS,
        sums_title=SUM_ANSWERS,
        sums_words=GIVE_OR_TAKE,
        answers=answers(data),
        demonstration=data.terms.describe_demonstration(),
        privacy=data.privacy,
        said=data.publication,
        spdx=re.fullmatch(r"[A-Za-z0-9.+-]+", data.terms.hub_licence),
        hub_licence=data.terms.hub_licence,
        named=data.named_labels,
        counts=Markup(count_table(data.label_names, data.generators, text_counts)),  # noqa: S704 - escaped there
        hub_size=hub_size(len(data.samples)),
        row_quotes=quote_rows(data),
        settings=(
            ("method", data.method),
            *data.settings,
            ("embedder", data.embedder),
            (words.SIGNED_PLAN, data.plan_hash),
            ("made", data.created),
            ("Undersong", data.version),
        ),
        panel_settings=panel.settings(),
        further_measures=_list_further_measures(data),
    )
    return re.sub(r"\n{3,}", "\n\n", card_text).rstrip("\n") + "\n"


def count_table(labels: Sequence[str], generators: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Returns a Markdown table of the number of texts by label and generator; counts [labels, generators]."""
    rows = [
        [escape_markdown(label) if label else "(no label)", *map(number, label_counts), number(sum(label_counts))]
        for label, label_counts in zip(labels, counts, strict=True)
    ]
    if len(rows) > 1:
        totals = [sum(column) for column in zip(*counts, strict=True)]
        rows.append(["all", *map(number, totals), number(sum(totals))])
    head = ["label", *map(escape_markdown, generators), "all"]
    rule = f"|---|{'---:|' * (len(generators) + 1)}"
    return "\n".join([_table_row(head), rule, *map(_table_row, rows), ""])


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def hub_size(text_count: int) -> str:
    """Returns the class of a data set's size, as hubs of data sets name it.

    >>> hub_size(600), hub_size(1000)
    ('n<1K', '1K<n<10K')
    """
    for count_limit, name in ((1e3, "n<1K"), (1e4, "1K<n<10K"), (1e5, "10K<n<100K"), (1e6, "100K<n<1M")):
        if text_count < count_limit:
            return name
    return "n>1M"


def escape_markdown(text: str) -> str:
    """Writes a name or sentence as plain Markdown text on one line."""
    escaped_line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join("\\" + letter if letter in _ESCAPED else letter for letter in escaped_line)


def _quote_yaml(text: Any) -> Markup:
    """Writes a name as a JSON string, which is also a YAML string, so that no colon or quote breaks the header."""
    return Markup(json.dumps(text, ensure_ascii=False).replace("<", "\\u003c"))  # noqa: S704


# The one kind of drawing of reports and comparisons: figures of several names side by side, as inline SVG.
# A style sheet decides the colours, for light and dark: marks carry classes. Every name that reaches a drawing is
# escaped; numbers are formatted here and hold no markup.

COLOURS = 9  # named colours; whatever comes after them shares the last, grey one
WIDTH = 420  # nearly the width of a phone's screen; a wider screen enlarges the drawing a little
NOISE_DEVIATIONS = 2.0  # half of an interval of noise, in standard deviations
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 26, 34  # margins around the frame
MOST_TICKS = 12  # labels below a chart
ROW = 18  # height of a line of the legend
LETTER = 7.2  # width of a letter at most, nearly, at the size of a chart's words

Points = Sequence[tuple[float, float] | None]
"""A figure and half of its interval, 0 for none, at each tick."""


def colour(index: int) -> int:
    """Returns the number of the colour that the name at ``index`` has in charts."""
    return min(index, COLOURS)


def series_chart(
    description: str,
    ticks: Sequence[str],
    series: Mapping[str, Points],
    *,
    axis: str = "",
    measure: str = "",
    reference: tuple[float, str] | None = None,
    form: Literal["line", "points", "bars"] = "line",
    percent: bool = False,
    planned: Collection[str] = (),
    names: Sequence[str] = (),
    width: int = WIDTH,
    height: int = 300,
) -> Markup:
    """Draws figures of several names side by side, a colour and a mark per name; "" if there are none.

    The figures stand below as a table. Names whose figures are the same share one line, and one entry of the legend.

    Args:
        ticks: labels below the frame, from left to right; ``axis`` says what they count, and ``measure`` what is drawn.
        reference: a figure that is marked by a line, and its name.
        form: a line or bars, on a scale that begins at 0; or points, which stand side by side at a tick.
        percent: True if the figures are shares, which are shown in per cent.
        planned: names of what is planned and not measured, whose lines are dashed.
        names: what the ticks stand for, in the table and the marks' titles; () for the ticks themselves.
    """
    tick_names = names or ticks
    has_legend = len(series) > 1 or bool(planned)
    series, planned = _merge_series(series, planned, are_shares=percent)
    present_points = [point for series_points in series.values() for point in series_points if point is not None]
    if not present_points:
        return Markup("")
    lowest, highest = (
        min(mean - half_width for mean, half_width in present_points),
        max(mean + half_width for mean, half_width in present_points),
    )
    if form != "points":
        lowest, highest = min(0.0, lowest), _round_up(max(highest, reference[0] if reference else 0.0))
    if form == "points" or lowest < 0:  # Noise can take a share of votes below 0.
        grid_values = _round_scale(lowest, highest, least_step=0.01 if percent else 0.0)
    else:
        grid_values = [float(value) for value in np.linspace(lowest, highest, 5)]
    lowest, highest = grid_values[0], grid_values[-1]
    right_edge, bottom_edge = width - RIGHT, height - BOTTOM

    def x(place: float) -> float:
        return LEFT + (right_edge - LEFT) * place / len(ticks)

    def y(value: float) -> float:
        return TOP + (bottom_edge - TOP) * (1 - (value - lowest) / (highest - lowest))

    svg_parts = [_draw_text(2, 11, measure, "axis")] if measure else []
    number_format = ".0f" if percent else ".4g"
    for grid_value in grid_values:
        label = f"{100 * grid_value:{number_format}} %" if percent else f"{grid_value:{number_format}}"
        svg_parts += [
            _draw_line("grid", LEFT, right_edge, y(grid_value), y(grid_value)),
            _draw_text(LEFT - 8, y(grid_value) + 4, label, "tick end"),
        ]
    svg_parts += [
        _draw_text(x_centre, height - 10, label, f"tick {anchor}")
        for x_centre, label, anchor in _place_ticks(ticks, width, x)
    ]
    svg_parts.append(_draw_text((LEFT + right_edge) / 2, height + 6, axis, "axis middle"))
    if reference is not None:
        reference_y = y(reference[0])
        svg_parts += [
            _draw_line("budget", LEFT, right_edge, reference_y, reference_y),
            _draw_text(right_edge - 4, reference_y - 5, reference[1], "note strong end")
            if _leaves_at_right(series, reference[0])
            else _draw_text(LEFT + 4, reference_y - 5, reference[1], "note strong"),
        ]
    for rank, (series_name, series_points) in enumerate(series.items()):
        mark_shift = (rank + 1) / (len(series) + 1) if form == "points" else 0.5
        point_marks = [
            (x(tick_index + mark_shift), tick_index, *point)
            for tick_index, point in enumerate(series_points)
            if point is not None
        ]
        line_class = " planned" if series_name in planned else ""
        svg_parts.append(_fill_markup('<g class="series{} c{}">', line_class, colour(rank)))
        if form == "line":
            path_points = " ".join(f"{mark_x:.1f},{y(mean):.1f}" for mark_x, _, mean, _ in point_marks)
            svg_parts.append(_fill_markup('<polyline points="{}"/>', path_points))
        for centre_x, tick_index, mean, half in point_marks:
            value_words = f"{100 * mean:.1f} %" if percent else f"{mean:.4g}" + (f" ± {half:.2g}" if half else "")
            title = f"{series_name}, {tick_names[tick_index]}: {value_words}"
            svg_parts.append(_draw_line("interval", centre_x, centre_x, y(mean - half), y(mean + half)))
            if form == "bars":
                svg_parts.append(_draw_bar(centre_x, 0.8 * (right_edge - LEFT) / len(ticks), y(mean), y(0.0), title))
            else:
                svg_parts.append(_draw_mark(centre_x, y(mean), title, rank))
        legend_y = height + 20 + ROW * rank
        if has_legend:
            legend_mark = (
                _fill_markup('<polyline points="{},{} {},{}"/>', LEFT - 14, legend_y, LEFT + 22, legend_y)
                if form == "line"
                else Markup("")
            )
            svg_parts += [legend_mark, _draw_mark(LEFT + 4, legend_y, series_name, rank)]
        svg_parts.append(Markup("</g>"))
        svg_parts += (
            [_draw_text(LEFT + 28, legend_y + 4, _cut_label(series_name, width - LEFT - 28), "")] if has_legend else []
        )
    svg_markup = _fill_markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
        *(width, height + 12 + ROW * len(series) * has_legend, description, Markup("").join(svg_parts)),
    )
    return svg_markup + _figure_table(tick_names, series, axis=axis, percent=percent)


def _leaves_at_right(series: Mapping[str, Points], mark: float) -> bool:
    """True if a label of ``mark`` lies further from the figures at the right end than at the left."""
    end_points = [(points[0], points[-1]) for points in series.values() if points]
    left_gaps = [abs(first[0] - mark) for first, _ in end_points if first is not None]
    right_gaps = [abs(last[0] - mark) for _, last in end_points if last is not None]
    return min(right_gaps, default=0.0) > min(left_gaps, default=0.0)


def _name_twins(twins: Sequence[str], *, are_shares: bool) -> str:
    """Names series of the same figures; of shares in such a way that nobody reads one as their sum."""
    joined_name = " and ".join(twins)
    return f"{joined_name} (each)" if are_shares and len(twins) > 1 else joined_name


def _merge_series(
    series: Mapping[str, Points], planned: Collection[str], *, are_shares: bool
) -> tuple[dict[str, Points], set[str]]:
    """Returns the series with one name for those of the same figures, and the names of the planned ones."""
    names_by_points: dict[tuple[tuple[float, float] | None, ...], list[str]] = {}
    for name, points in series.items():
        names_by_points.setdefault(tuple(points), []).append(name)
    name_twins = partial(_name_twins, are_shares=are_shares)
    merged_series = {name_twins(twins): points for points, twins in names_by_points.items()}
    return dict(merged_series), {name_twins(twins) for twins in names_by_points.values() if set(twins) <= set(planned)}


def _place_ticks(
    ticks: Sequence[str], width: int, x: Callable[[float], float]
) -> Iterator[tuple[float, str, Literal["middle", "end", ""]]]:
    """Yields place, label and anchor of the first and the last tick, and of as many between them as have room."""
    if len(ticks) == 1:
        yield x(0.5), _cut_label(ticks[0], width - LEFT - RIGHT), "middle"
        return
    label_room = (width - LEFT) * 0.45
    last_label = _cut_label(ticks[-1], label_room)
    half_width = LETTER * len(last_label) / 2
    last_end = min(x(len(ticks) - 0.5) + half_width, width - 2.0)
    occupied_to = 0.0
    for tick_index in range(0, len(ticks) - 1, max(1, -(-len(ticks) // MOST_TICKS))):
        label, x_centre = _cut_label(ticks[tick_index], label_room), x(tick_index + 0.5)
        label_half_width = LETTER * len(label) / 2
        x_centre = max(x_centre, label_half_width + 2.0)
        if (
            x_centre - label_half_width >= occupied_to
            and x_centre + label_half_width + LETTER <= last_end - 2 * half_width
        ):
            occupied_to = x_centre + label_half_width + LETTER
            yield x_centre, label, "middle"
    yield last_end, last_label, "end"


def _cut_label(text: str, room: float) -> str:
    """Cuts a name to what fits into a room of a chart; the table below has it whole."""
    longest_label = max(4, int(room / LETTER))
    return text if len(text) <= longest_label else f"{text[: longest_label - 1]}…"


def _figure_table(ticks: Sequence[str], series: Mapping[str, Points], *, axis: str, percent: bool) -> Markup:
    """Renders the figures of a chart as a table, folded."""

    def cell_text(point: tuple[float, float] | None) -> str:
        if point is None:
            return "–"
        shown_value, half_width = (100 * point[0], 100 * point[1]) if percent else point
        return f"{shown_value:.4g}{f' ± {half_width:.2g}' if half_width else ''}{' %' if percent else ''}"

    cell = '<td class="n right">{}</td>'
    table_rows = []
    for tick_index, tick in enumerate(ticks):
        row_cells = [
            _fill_markup(cell, cell_text(points[tick_index] if tick_index < len(points) else None))
            for points in series.values()
        ]
        table_rows.append(_fill_markup('<tr><th scope="row">{}</th>{}</tr>', tick, Markup("").join(row_cells)))
    head_cells = Markup("").join(_fill_markup('<th scope="col" class="n right">{}</th>', name) for name in series)
    return _fill_markup(
        '<details class="numbers"><summary>Figures of this chart</summary><div class="scroll" tabindex="0"'
        ' role="region" aria-label="Figures: {}"><table><thead><tr><th scope="col">{}</th>{}</tr></thead>'
        "<tbody>{}</tbody></table></div></details>",
        *(axis or "chart", axis or "place", head_cells, Markup("").join(table_rows)),
    )


def shares_chart(
    description: str,
    axis: str,
    generators: Sequence[str],
    rows: Sequence[Sequence[float]],
    noise: Sequence[Sequence[float]] = (),
    *,
    first_number: int = 0,
) -> Markup:
    """Draws each generator's share by round or sum; "" for fewer than two generators, or before the first row.

    Args:
        rows: one share per generator in each row; the rows are counted from ``first_number``.
        noise: standard deviation of each share's noise; a row without any has exact shares.
    """
    if len(generators) < 2:
        return Markup("")
    noise_rows = noise or ((),) * len(rows)
    series_by_generator = {
        name: [
            (round_shares[generator_index], NOISE_DEVIATIONS * deviations[generator_index] if deviations else 0.0)
            for round_shares, deviations in zip(rows, noise_rows, strict=True)
        ]
        for generator_index, name in enumerate(generators)
    }
    last_shares = "; ".join(
        f"{name} {100 * points[-1][0]:.0f} %" for name, points in series_by_generator.items() if points
    )
    return series_chart(
        f"{description}. In the last: {last_shares}",
        [str(first_number + round_index) for round_index in range(len(rows))],
        series_by_generator,
        axis=axis,
        measure="share",
        reference=(1 / len(series_by_generator), "equal share"),
        percent=True,
    )


def epsilon_chart(spent: Sequence[float], budget: float, planned: Sequence[float] = ()) -> Markup:
    """Draws epsilon after each private sum beside its budget, and as it is planned; "" if there is neither."""
    epsilon_by_line = {"as planned": planned, "as it ran": spent}  # The last line is drawn above the others.
    ran_words = f"ran to {spent[-1]:.4g} after {len(spent)} sums" if spent else "nothing was opened yet"
    plan = f", planned to {planned[-1]:.4g} after {len(planned)} sums" if planned else ""
    return series_chart(
        f"Epsilon after each private sum: {ran_words}{plan}; the run's budget is {budget:.4g}",
        [str(sum_index + 1) for sum_index in range(max(len(spent), len(planned)))],
        {
            line_name: [(value, 0.0) for value in line_values]
            for line_name, line_values in epsilon_by_line.items()
            if line_values
        },
        axis="private sum",
        measure="epsilon",
        reference=(budget, f"the run's budget, {budget:.4g}"),
        planned=("as planned",),
        height=220,
    )


def _fill_markup(template_text: str, *values: Any) -> Markup:
    """Puts values into markup, escaped."""
    return Markup(template_text).format(*values)  # noqa: S704 - the values are escaped


def _draw_text(x: float, y: float, text: str, classes: str) -> Markup:
    return _fill_markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>', x, y, classes, text)


def _draw_line(classes: str, x1: float, x2: float, y1: float, y2: float) -> Markup:
    return _fill_markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>', classes, x1, x2, y1, y2)


MARKS = (
    "M-3.6,0a3.6,3.6 0 1,0 7.2,0a3.6,3.6 0 1,0 -7.2,0",
    "M-3.3,-3.3h6.6v6.6h-6.6z",
    "M0,-4.4L4.2,3.2H-4.2z",
    "M0,-4.6L4.6,0L0,4.6L-4.6,0z",
)


def _draw_mark(x: float, y: float, title: str, rank: int) -> Markup:
    """Draws a mark: a disc, a square, a triangle or a diamond, so that names differ without colour."""
    mark_markup = '<path class="mark" d="{}" transform="translate({:.1f},{:.1f})"><title>{}</title></path>'
    return _fill_markup(mark_markup, MARKS[rank % len(MARKS)], x, y, title)


def _draw_bar(x: float, width: float, top: float, bottom: float, title: str) -> Markup:
    """Draws the bar of a count around ``x``."""
    bar_markup = '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
    return _fill_markup(bar_markup, x - width / 2, top, width, bottom - top, title)


def _round_up(value: float) -> float:
    """Returns the next round number whose quarters are round too."""
    if value <= 0:
        return 1.0
    power_of_ten = 10.0 ** np.floor(np.log10(value))
    round_steps = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
    return float(power_of_ten * next(step for step in round_steps if step * power_of_ten >= value * (1 - 1e-9)))


def _round_scale(lowest: float, highest: float, *, least_step: float = 0.0) -> list[float]:
    """Returns round, equally distant values for a scale's grid, from below ``lowest`` to above ``highest``.

    Args:
        least_step: smallest distance of two values, such as one percent where labels have no decimals.

    >>> _round_scale(0.09, 0.6), _round_scale(0.71, 0.71), _round_scale(0.1, 0.1 + 1e-16)
    ([0.0, 0.2, 0.4, 0.6], [0.6, 0.8], [0.05, 0.1, 0.15])
    """
    span, largest_size = highest - lowest, max(abs(lowest), abs(highest))
    if span <= 1e-9 * largest_size:  # equal but for the rounding of floats
        span = largest_size or 1.0
    power_of_ten = 10.0 ** math.floor(math.log10(span / 4))
    step_factors = (factor for factor in (1, 2, 5, 10) if 4 * power_of_ten * factor >= span * (1 - 1e-9))
    step = max(least_step, power_of_ten * next(step_factors))
    first, last = math.floor(lowest / step + 1e-9), math.ceil(highest / step - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    return [round(step * step_number, 12) for step_number in range(first, last + 1)]
