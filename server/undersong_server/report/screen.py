"""The last screen of a run: the essentials in ten lines."""

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from undersong_common.printable import counted, duration, noun
from undersong_server.report.data import PrivacyStatement, ReportData, number, plain

BAR = 12
LINES = 10


def final_screen(data: ReportData, folder: Path) -> RenderableType:
    """Renders at most ten lines: texts, weights of the generators, panel, cost in privacy and place of the report."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=8)
    rows.add_column(overflow="fold")
    lines: list[tuple[str, Text]] = [("written", _written(data))]
    accuracy = _accuracy(data)
    weights = _weights(data, LINES - 4 - len(accuracy))
    lines += [("weights" if index == 0 else "", line) for index, line in enumerate(weights)]
    lines += [("panel" if index == 0 else "", line) for index, line in enumerate(accuracy)]
    lines.append(("privacy", _privacy(data.privacy)))
    lines.append(("look at", Text(str(folder / "report.html"), style="bold")))
    for name, line in lines:
        rows.add_row(name, line)
    title = Text.assemble((data.task, "bold"), f"  {data.method}", style="")
    return Group(title, rows)


def _written(data: ReportData) -> Text:
    labels = len([name for name in data.label_names if name])
    dropped = sum(each.count.dropped for each in data.usage)
    words = f"{plain(len(data.samples))} {noun(len(data.samples), 'text')}"
    words += f", {counted(labels, 'label')}" if labels else ""
    words += f", {counted(data.rounds, 'round')}"
    words += f", {data.privacy.quorum.parties} parties" if data.privacy.quorum.parties > 1 else ""
    words += f"; {plain(dropped)} dropped (no text of their own)" if dropped else ""
    spent = sum(each.count.price_usd for each in data.usage)
    seconds = sum(seconds for _, seconds in data.seconds)
    return Text(words + (f"; {spent:.2f} US$" if spent else "") + (f"; {duration(seconds)}" if seconds else ""))


def _weights(data: ReportData, most: int) -> list[Text]:
    if len(data.generators) < 2 or not data.weights:
        return []
    last, first = data.weights[-1], data.weights[0]
    order = sorted(range(len(last)), key=lambda index: -last[index])
    shown = order if len(order) <= most else order[: most - 1]
    width = max(len(data.generators[index]) for index in shown)
    width = min(width, 24)
    lines = []
    for index in shown:
        filled = round(BAR * last[index])
        name = data.generators[index]
        lines.append(
            Text.assemble(
                (name if len(name) <= width else name[: width - 1] + "…").ljust(width),
                "  ",
                ("━" * filled, "cyan"),
                ("━" * (BAR - filled), "bright_black"),
                f"  {100 * first[index]:3.0f} % → {100 * last[index]:3.0f} %",
            )
        )
    if len(order) > len(shown):
        rest = sum(last[index] for index in order[len(shown) :])
        lines.append(Text(f"{counted(len(order) - len(shown), 'other')}: {100 * rest:.0f} %"))
    return lines


def _accuracy(data: ReportData) -> list[Text]:
    lines = []
    panels = {each.data: each for each in reversed(data.accuracy)}  # the panel is the first model of its data
    for each in sorted(panels.values(), key=lambda each: (not each.ours, data.accuracy.index(each)))[:3]:
        note = " (not private)" if each.reads_private and "no privacy" not in each.data else ""
        figure = (f"{100 * each.accuracy:5.1f} %", "bold green" if each.ours else "bold")
        lines.append(Text.assemble(figure, f"  {each.data}{note}  ", (each.model.partition(": ")[2], "dim")))
    return lines


def _privacy(privacy: PrivacyStatement) -> Text:
    if not privacy.is_private:
        return Text(privacy.headline, style="bold red")
    if not privacy.epsilon_after:
        return Text(privacy.headline)
    return Text.assemble(
        ("epsilon " + number(privacy.epsilon_after[-1]), "bold"),
        f" of {number(privacy.promise.epsilon)}, delta {number(privacy.promise.delta)}, per {privacy.promise.unit}, "
        + counted(len(privacy.epsilon_after), "private sum"),
    )
