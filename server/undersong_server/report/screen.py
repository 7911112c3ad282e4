"""The last screen of a run: the essentials in ten lines."""

from pathlib import Path

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from undersong_common.printable import counted, duration, noun
from undersong_server.generators.endpoints import UNREPORTED
from undersong_server.methods.parts.private_score import PrivateScore, measured_words
from undersong_server.report.data import EQUAL_WEIGHTS, PrivacyStatement, ReportData, number
from undersong_server.report.verdict import verdict

BAR = 12  # columns of a bar
LINES = 10
LONGEST_NAME = 24  # columns of a generator's name


def final_screen(data: ReportData, folder: Path) -> RenderableType:
    """Renders at most ten lines: texts, weights, panel, cost in privacy, place of the report, and the private score."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=8)
    rows.add_column(overflow="fold")
    rows.add_row("written", _summary_text(data))
    rows.add_row("verdict", Text(verdict(data)))
    accuracy = _accuracy_lines(data)
    if len(data.generators) > 1 and data.weights:
        room = LINES - 5 - len(accuracy) - (data.score is not None)
        rows.add_row("weights", _equal_weights_text(data) if data.has_equal_weights else _weight_table(data, room))
    if accuracy:
        rows.add_row("panel", Group(*accuracy))
    rows.add_row("privacy", _privacy_text(data.privacy))
    rows.add_row("look at", Text(str(folder / "report.html"), style="bold"))
    if data.score is not None:
        rows.add_row("score", _score_text(data.score, measured_words(is_private=data.privacy.is_private)))
    title = Text.assemble((data.task, "bold"), f"  {data.method}", style="")
    return Group(title, rows)


def _summary_text(data: ReportData) -> Text:
    labels = len(data.named_labels)
    dropped = sum(use.count.dropped for use in data.usage)
    words = f"{number(len(data.samples))} {noun(len(data.samples), 'text')}"
    words += f", {counted(labels, 'label')}" if labels else ""
    words += f", {counted(data.rounds, 'round')}"
    words += f", {data.privacy.quorum.parties} parties" if data.privacy.quorum.parties > 1 else ""
    words += f"; {number(data.set_aside)} set aside" if data.set_aside else ""
    words += f"; {number(dropped)} dropped (no text of their own)" if dropped else ""
    words += "".join(f"; {label}: no text (refused for its content)" for label in data.refused_labels)
    lost_answers = sum(use.count.lost for use in data.usage)
    words += f"; {counted(lost_answers, 'answer')} lost on the way" if lost_answers else ""
    unreported = sum(use.count.notes.get(UNREPORTED, 0) for use in data.usage)
    words += f"; {UNREPORTED}: {number(unreported)}" if unreported else ""
    spent = sum(use.count.price_usd + use.count.lost_usd for use in data.usage)
    seconds = sum(seconds for _, seconds in data.seconds)
    return Text(words + (f"; {spent:.2f} US$" if spent else "") + (f"; {duration(seconds)}" if seconds else ""))


def _weight_table(data: ReportData, most_rows: int) -> Table:
    """Each generator's last weight as a bar, the largest first, beside its first one; the rest as one line."""
    last, first = data.weights[-1], data.weights[0]
    order = sorted(range(len(last)), key=lambda index: -last[index])
    top = order if len(order) <= most_rows else order[: most_rows - 1]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=LONGEST_NAME)
    for index in top:
        error = f" (s.e. {100 * data.weight_errors[index]:.0f})" if data.weight_errors else ""
        change = f"{100 * first[index]:3.0f} % → {100 * last[index]:3.0f} %{error}"
        table.add_row(Text(data.generators[index]), ProgressBar(total=1.0, completed=last[index], width=BAR), change)
    if len(order) > len(top):
        remainder = sum(last[index] for index in order[len(top) :])
        table.add_row(Text(counted(len(order) - len(top), "other")), "", f"{100 * remainder:.0f} %")
    return table


def _equal_weights_text(data: ReportData) -> Text:
    """Says of weights whose differences are noise how far apart they are, in place of bars that would show noise."""
    low, high = (round(100 * weight) for weight in (min(data.weights[-1]), max(data.weights[-1])))
    error = round(100 * max(data.weight_errors))
    share = f"{low} % each" if low == high else f"{low} to {high} %"
    return Text(f"{EQUAL_WEIGHTS}: {share}" + (f", s.e. up to {error} %" if error else ""))


def _accuracy_lines(data: ReportData) -> list[Text]:
    lines = []
    panels = {
        accuracy.data: accuracy for accuracy in reversed(data.accuracy)
    }  # the panel is the first model of its data
    for accuracy in sorted(panels.values(), key=lambda accuracy: (not accuracy.ours, data.accuracy.index(accuracy)))[
        :3
    ]:
        note = " (not private)" if accuracy.reads_private and "no privacy" not in accuracy.data else ""
        figure = (f"{100 * accuracy.accuracy:5.1f} %", "bold green" if accuracy.ours else "bold")
        lines.append(Text.assemble(figure, f"  {accuracy.data}{note}  ", (accuracy.model.partition(": ")[2], "dim")))
    return lines


def _score_text(score: PrivateScore, measured: str) -> Text:
    if score.zero_shot is not None:
        return Text.assemble(
            (f"{score.value:5.2f}", "bold"),
            f"  similarity of the hospitals' own records to the nearest text ({score.low:.2f} to {score.high:.2f}),"
            f" {measured}; {score.zero_shot.value:.2f} without records",
        )
    return Text.assemble(
        (f"{100 * score.value:5.1f} %", "bold"),
        f"  of the hospitals' own records labelled right ({100 * score.low:.0f} to {100 * score.high:.0f}), {measured}",
    )


def _privacy_text(privacy: PrivacyStatement) -> Text:
    if not privacy.is_private:
        return Text(privacy.headline, style="bold red")
    if not privacy.epsilon_after:
        return Text(privacy.headline)
    return Text.assemble(
        ("epsilon " + number(privacy.epsilon_after[-1]), "bold"),
        f" of {number(privacy.promise.epsilon)}, delta {number(privacy.promise.delta)}, per {privacy.promise.unit}, "
        + counted(len(privacy.epsilon_after), "private sum"),
    )
