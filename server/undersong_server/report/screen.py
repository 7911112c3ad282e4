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
from undersong_server.report.verdict import alarms_of, verdict

BAR = 12  # columns of a bar
LINES = 10
FEWEST_WEIGHTS = 3  # generators that are named, however many other lines there are
LONGEST_NAME = 24  # columns of a generator's name


def final_screen(data: ReportData, folder: Path) -> RenderableType:
    """Renders some ten lines: texts, weights, panel, cost in privacy, place of the report, and the private score."""
    screen_rows = Table.grid(padding=(0, 2))
    screen_rows.add_column(style="dim", no_wrap=True, min_width=8)
    screen_rows.add_column(overflow="fold")
    screen_rows.add_row("written", _summary_text(data))
    screen_rows.add_row("verdict", Text(" ".join(dict.fromkeys([verdict(data), *alarms_of(data)]))))
    accuracy = _accuracy_lines(data)
    if len(data.generators) > 1 and data.weights:
        weight_row_count = max(FEWEST_WEIGHTS, LINES - 5 - len(accuracy) - (data.score is not None))
        screen_rows.add_row(
            "weights", _equal_weights_text(data) if data.has_equal_weights else _weight_table(data, weight_row_count)
        )
    if accuracy:
        screen_rows.add_row("panel", Group(*accuracy))
    screen_rows.add_row("privacy", _privacy_text(data.privacy))
    screen_rows.add_row("look at", Text(str(folder / "report.html"), style="bold"))
    if data.score is not None:
        screen_rows.add_row("score", _score_text(data.score, measured_words(is_private=data.privacy.is_private)))
    title = Text.assemble((data.task, "bold"), f"  {data.method}", style="")
    return Group(title, screen_rows)


def _summary_text(data: ReportData) -> Text:
    label_count = len(data.named_labels)
    dropped_text_count = sum(use.count.dropped for use in data.usage)
    texts_words = f"{number(len(data.samples))} {noun(len(data.samples), 'text')}"
    texts_words += f", {counted(label_count, 'label')}" if label_count else ""
    texts_words += f", {counted(data.rounds, 'round')}"
    texts_words += f", {data.privacy.quorum.parties} parties" if data.privacy.quorum.parties > 1 else ""
    texts_words += f"; {number(data.set_aside)} set aside" if data.set_aside else ""
    texts_words += f"; {number(dropped_text_count)} dropped (no text of their own)" if dropped_text_count else ""
    texts_words += "".join(f"; {label}: no text (refused for its content)" for label in data.refused_labels)
    lost_answer_count = sum(use.count.lost for use in data.usage)
    texts_words += f"; {counted(lost_answer_count, 'answer')} lost on the way" if lost_answer_count else ""
    unreported_calls = sum(use.count.notes.get(UNREPORTED, 0) for use in data.usage)
    texts_words += f"; {UNREPORTED}: {number(unreported_calls)}" if unreported_calls else ""
    price_usd = sum(use.count.price_usd + use.count.lost_usd for use in data.usage)
    total_seconds = sum(total_seconds for _, total_seconds in data.seconds)
    return Text(
        texts_words
        + (f"; {price_usd:.2f} US$" if price_usd else "")
        + (f"; {duration(total_seconds)}" if total_seconds else "")
    )


def _weight_table(data: ReportData, row_limit: int) -> Table:
    """Each generator's last weight as a bar, the largest first, beside its first one; the rest as one line."""
    last_weights, first_weights = data.weights[-1], data.weights[0]
    generator_order = sorted(range(len(last_weights)), key=lambda generator_index: -last_weights[generator_index])
    shown_indices = generator_order if len(generator_order) <= row_limit else generator_order[: row_limit - 1]
    weight_table = Table.grid(padding=(0, 2))
    weight_table.add_column(no_wrap=True, overflow="ellipsis", max_width=LONGEST_NAME)
    for generator_index in shown_indices:
        error_words = f" (s.e. {100 * data.weight_errors[generator_index]:.0f})" if data.weight_errors else ""
        change_words = (
            f"{100 * first_weights[generator_index]:3.0f} % → {100 * last_weights[generator_index]:3.0f} %{error_words}"
        )
        weight_table.add_row(
            Text(data.generators[generator_index]),
            ProgressBar(total=1.0, completed=last_weights[generator_index], width=BAR),
            change_words,
        )
    if len(generator_order) > len(shown_indices):
        remaining_weight = sum(
            last_weights[generator_index] for generator_index in generator_order[len(shown_indices) :]
        )
        weight_table.add_row(
            Text(counted(len(generator_order) - len(shown_indices), "other")), "", f"{100 * remaining_weight:.0f} %"
        )
    return weight_table


def _equal_weights_text(data: ReportData) -> Text:
    """Returns the sentence on weights that differ by noise only: their range, in place of bars."""
    lowest_percent, highest_percent = (round(100 * weight) for weight in (min(data.weights[-1]), max(data.weights[-1])))
    error_percent = round(100 * max(data.weight_errors))
    share_words = (
        f"{lowest_percent} % each" if lowest_percent == highest_percent else f"{lowest_percent} to {highest_percent} %"
    )
    return Text(f"{EQUAL_WEIGHTS}: {share_words}" + (f", s.e. up to {error_percent} %" if error_percent else ""))


def _accuracy_lines(data: ReportData) -> list[Text]:
    accuracy_lines = []
    panel_shares = {
        accuracy.data: accuracy for accuracy in reversed(data.accuracy)
    }  # the panel is the first model of its data
    for accuracy in sorted(
        panel_shares.values(), key=lambda accuracy: (not accuracy.ours, data.accuracy.index(accuracy))
    )[:3]:
        privacy_note = " (not private)" if accuracy.reads_private and "no privacy" not in accuracy.data else ""
        accuracy_words = (f"{100 * accuracy.accuracy:5.1f} %", "bold green" if accuracy.ours else "bold")
        accuracy_lines.append(
            Text.assemble(
                accuracy_words, f"  {accuracy.data}{privacy_note}  ", (accuracy.model.partition(": ")[2], "dim")
            )
        )
    return accuracy_lines


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
